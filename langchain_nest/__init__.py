"""LangChain components on top of `nest_engine`: chat model, text LLM and passage sources.

This package translates types only; the method lives in `nest_engine`.
"""
