"""Measuring: how fast the modes are, beside what a user would run instead."""
