"""Stage one of the method: finding passages for a prompt.

Importing this package is cheap: FAISS, bm25s, torch and transformers are loaded when a
source is made.
"""

from nest_engine.retrieval.dense import FaissSource
from nest_engine.retrieval.embedder import Embedder, TransformerEmbedder
from nest_engine.retrieval.hybrid import HybridSource
from nest_engine.retrieval.source import ListSource, PassageSource
from nest_engine.retrieval.sparse import Bm25Source

__all__ = [
    "Bm25Source",
    "Embedder",
    "FaissSource",
    "HybridSource",
    "ListSource",
    "PassageSource",
    "TransformerEmbedder",
]
