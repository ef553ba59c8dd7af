"""LlamaIndex components on top of `nest_engine`: LLM, query engine and passage sources.

This package translates types only; the method lives in `nest_engine`.
"""
