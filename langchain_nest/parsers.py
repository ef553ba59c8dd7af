"""Parsers of structured output that take no JSON that was cut off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import Generation


class JsonParser(JsonOutputParser):
    """LangChain's parser, which would complete an answer that the token limit cut off."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Parse an answer.

        Raises:
            OutputParserException: If it is no complete JSON.
        """
        if not partial:
            check_complete(result)
        return super().parse_result(result, partial=partial)


class ObjectParser(PydanticOutputParser[Any]):
    """The same for pydantic classes."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Parse an answer.

        Raises:
            OutputParserException: If it is no complete JSON, or does not fit the class.
        """
        if not partial:
            check_complete(result)
        return super().parse_result(result, partial=partial)


def check_complete(result: Sequence[Generation]) -> None:
    """Refuse an answer that is no complete JSON.

    Raises:
        OutputParserException: If it is not.
    """
    text = result[0].text
    try:
        json.loads(text)
    except ValueError as error:
        raise OutputParserException(
            "the answer is no complete JSON, most likely cut off by the token limit: raise max_tokens", llm_output=text
        ) from error
