"""Every error that the engine raises on purpose, each of them a `NestError`.

The messages name the fix. Each class also derives from the built-in error that a
caller would expect, so `except ValueError` keeps working.
"""


class NestError(Exception):
    """Base of all errors raised by nest_engine and its adapters."""


class ConfigError(NestError, ValueError):
    """A setting is unknown or out of its range, or two settings contradict each other."""


class PromptError(NestError, ValueError):
    """The prompt is empty or malformed."""


class ContextOverflowError(PromptError):
    """The prompt and the token limit do not fit into the model's context window."""


class PassageError(NestError, ValueError):
    """A passage is empty, not text, or otherwise unusable."""


class SourceError(NestError, RuntimeError):
    """A passage source failed or returned something that is not a passage."""


class ModelNotFoundError(NestError, FileNotFoundError):
    """No model at the given place: not a known name, a folder, a GGUF file or a reachable hub id."""


class UnsupportedModelError(NestError, ValueError):
    """The model loads, but NEST cannot run on it: the message says why."""


class DownloadError(NestError, RuntimeError):
    """A demo model could not be fetched, or its checksum is wrong."""


class DocumentError(NestError, ValueError):
    """A document file is missing, unreadable or of an unknown kind."""


class TaskError(DocumentError):
    """A file of questions, articles or choices to evaluate on is not in its format."""


class StoreError(NestError, RuntimeError):
    """A key store or a saved index is unusable: damaged, of a newer format, or of another model."""


class KeyFormatError(NestError, ValueError):
    """A key is not finite in the storage format."""


class NonFiniteLogitsError(NestError, ArithmeticError):
    """The model produced NaN logits."""


class ModelMemoryError(NestError, RuntimeError):
    """The model ran out of memory in the middle of a call; the engine can be used again."""
