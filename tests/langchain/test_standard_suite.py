"""LangChain's standard tests of chat models, whole, on the demo model."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_nest import ChatNest
from langchain_nest.engines import EngineSpec, shared_engine
from tests.conftest import DEMO_MODEL
from tests.tiny import save_tiny

pytestmark = [pytest.mark.demo_model]


@pytest.fixture(scope="module", autouse=True)
def loaded(demo_model_dir: Any) -> Any:
    """Holds the engine that all models here share, so that it is loaded once."""
    return shared_engine(EngineSpec(DEMO_MODEL))


@cache
def other_model() -> Path:
    """A folder with another model than the demo model."""
    return save_tiny(Path(tempfile.mkdtemp(prefix="nest-other-model-")))


class TestChatNestUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[ChatNest]:
        return ChatNest

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": DEMO_MODEL}


@pytest.mark.slow
class TestChatNestIntegration(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatNest]:
        return ChatNest

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": DEMO_MODEL, "max_tokens": 48, "mode": "lm"}

    @property
    def has_tool_calling(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def has_structured_output(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def returns_usage_metadata(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return str(other_model())

    @pytest.mark.xfail(
        reason="unless it is forced, the 135M demo model answers this in text: its calls are valid, its choices poor"
    )
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)
