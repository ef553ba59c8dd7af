"""Tool calls and structured output: grammars that an answer must follow, whatever the model would say.

What is constrained is the plain language model's: no passage is copied into a call or an object.
Needs llguidance: `pip install 'nest-rag[tools]'`.
"""

from nest_engine.constrained.calls import CallScanner, ToolCall
from nest_engine.constrained.grammar import Grammar, call_grammar, json_grammar
from nest_engine.constrained.processor import GrammarProcessor, constrain
from nest_engine.constrained.prompts import render_call, render_result, schema_prompt, tool_prompt
from nest_engine.constrained.tools import Tool, ToolChoice

__all__ = [
    "CallScanner",
    "Grammar",
    "GrammarProcessor",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "call_grammar",
    "constrain",
    "json_grammar",
    "render_call",
    "render_result",
    "schema_prompt",
    "tool_prompt",
]
