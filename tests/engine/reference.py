"""METHOD in plain words: no cache, no chunks, the whole sequence read again for every token.

Written to be read, not to be fast. It shares no code with the engine, only settings and
random numbers. Every decision carries its margin: how close it was to going the other way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nest_engine import NestConfig, Passage
from nest_engine.decoding.randomness import uniform

Place = tuple[int, int]  # passage, token


@dataclass(frozen=True)
class Emitted:
    token: int
    place: Place | None
    weight: float
    margin: float


@dataclass(frozen=True)
class Entry:
    key: torch.Tensor
    value: int
    place: Place


@dataclass(frozen=True)
class Distribution:
    p: torch.Tensor  # p_M over the vocabulary
    p_lm: torch.Tensor
    weight: float  # lambda
    neighbors: list[tuple[float, int]]  # (squared distance, entry number), nearest first
    margin: float  # of the choice of neighbors


class Reference:
    def __init__(self, model, tokenizer, feed_forward, config: NestConfig, prefix: Sequence[int] = ()) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.prefix = list(prefix)
        end = model.generation_config.eos_token_id
        self.end_ids = set(end if isinstance(end, list) else [end]) - {None}
        self.caught: list[torch.Tensor] = []
        feed_forward.register_forward_pre_hook(lambda module, args: self.caught.append(args[0]))

    # Section 3: the token datastore

    @torch.inference_mode()
    def read(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and key vectors at every position."""
        self.caught.clear()
        logits = self.model(torch.tensor([ids]), use_cache=False).logits[0]
        return logits, self.caught.pop()[0]

    def encode_text(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids, and where each one ends; -1 for a token that does not complete its character."""
        encoding = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        offsets = encoding["offset_mapping"]
        following = [start for start, _ in offsets[1:]] + [len(text)]
        return encoding["input_ids"], [end if end <= n else -1 for (_, end), n in zip(offsets, following, strict=True)]

    def open(self, passages: Sequence[Passage]) -> None:
        self.entries: list[Entry] = []
        self.texts: list[list[int]] = []
        self.sentence_ends: list[list[bool]] = []
        for number, passage in enumerate(passages):
            context = self.prefix + self.encode_text(passage.title + "\n")[0]
            text, ends = self.encode_text(passage.text)
            _, hidden = self.read(context + text)
            for position, value in enumerate(text):
                before = len(context) + position - 1
                if before > 0:  # the very first position is an attention sink
                    key = hidden[before].to(getattr(torch, self.config.key_format)).to(hidden.dtype)
                    self.entries.append(Entry(key, value, (number, position)))
            self.texts.append(text)
            self.sentence_ends.append([ends_sentence(passage.text, end) for end in ends])

    # Section 4: the mixture

    def distribution(self, ids: list[int], masked: set[Place]) -> Distribution:
        logits, hidden = self.read(ids)
        p_lm = torch.softmax(logits[-1], -1)
        query = hidden[-1]
        active = [i for i, entry in enumerate(self.entries) if entry.place not in masked]
        if not active or self.config.mode in ("lm", "ra", "lossless"):
            return Distribution(p_lm, p_lm, 1.0, [], math.inf)
        distances = [(float((query - self.entries[i].key).square().sum()), i) for i in active]
        distances.sort()
        r = min(self.config.neighbors, len(active))
        neighbors = distances[:r]
        cut = distances[r][0] / distances[r - 1][0] - 1 if r < len(active) else math.inf
        weight = self.lm_weight([d for d, _ in neighbors])
        mu = self.config.mu or 1 / math.sqrt(len(query))
        nearest = neighbors[0][0]
        shares = [math.exp(-mu * (d - nearest)) for d, _ in neighbors]
        p_knn = torch.zeros_like(p_lm)
        for share, (_, i) in zip(shares, neighbors, strict=True):
            p_knn[self.entries[i].value] += share / sum(shares)
        return Distribution(weight * p_lm + (1 - weight) * p_knn, p_lm, weight, neighbors, cut)

    def lm_weight(self, distances: list[float]) -> float:
        if self.config.mode == "knn-lm":
            return self.config.knn_weight
        ratio = min(distances) / max(distances) if max(distances) > 0 else 0.0
        return 1 / (1 + math.exp(-(ratio - self.config.alpha) / self.config.tau))

    # Sections 5 and 6: spans and their verification

    def choose(self, d: Distribution, position: int) -> tuple[int, float]:
        """The token, and how close the choice was."""
        if self.config.temperature == 0:
            top = torch.topk(d.p, 2)
            return int(top.indices[0]), float(1 - top.values[1] / top.values[0])
        p = self.warp(d.p)
        u = uniform(self.config.seed, position, "choose")
        cumulated = 0.0
        for token, share in enumerate(p.tolist()):
            cumulated += share
            if u < cumulated:
                return token, min(cumulated - u, u - (cumulated - share))
        raise AssertionError("probabilities do not sum to 1")

    def warp(self, p: torch.Tensor) -> torch.Tensor:
        p = p.double() ** (1 / self.config.temperature)
        p /= p.sum()
        if self.config.top_k is not None:
            p[p < p.sort().values[-self.config.top_k]] = 0
            p /= p.sum()
        if self.config.top_p < 1:
            held = 0.0
            for token in torch.argsort(p, descending=True, stable=True).tolist():
                share = float(p[token])
                if held >= self.config.top_p:
                    p[token] = 0
                held += share
        return p / p.sum()

    def span_start(self, d: Distribution, token: int) -> tuple[Place | None, float]:
        margin = min(d.margin, abs(d.weight - self.config.delta))
        if self.config.mode not in ("nest", "ra-nest"):
            return None, math.inf
        if d.weight > self.config.delta:
            return None, margin
        while self.waiting and (not self.out or self.sentence_ended):
            number, start, end = self.waiting.pop(0)
            if not any((number, position) in self.masked for position in range(start, end)):
                return (number, start), margin
        matching = [(distance, i) for distance, i in d.neighbors if self.entries[i].value == token]
        if not matching:
            return None, margin
        if len(matching) > 1:
            margin = min(margin, matching[1][0] / max(matching[0][0], 1e-300) - 1)
        return self.entries[min(matching)[1]].place, margin

    def rank(self, passages: Sequence[Passage], query: str) -> list[tuple[int, int, int]]:
        """Sentences (passage, first token, token behind the last) that share enough with the query, best first."""
        sentences, words, ranks = [], [], []
        for number, passage in enumerate(passages):
            _, ends = self.encode_text(passage.text)
            start = 0
            for position, end in enumerate(ends):
                if self.sentence_ends[number][position] or position == len(ends) - 1:
                    sentences.append((number, start, position + 1))
                    text = passage.text[ends[start - 1] if start else 0 : end]
                    words.append([word[:5] for word in re.findall(r"\w+", text.casefold())])
                    ranks.append(number)
                    start = position + 1
        weights = {}
        for word in {word[:5] for word in re.findall(r"\w+", query.casefold())}:
            holders = sum(word in found for found in words)
            if holders:
                weights[word] = math.log(1 + len(words) / holders)
        mean = sum(map(len, words)) / len(words)
        scored = []
        for i, found in enumerate(words):
            share = sum(weights[word] for word in weights if word in found) / sum(weights.values()) if weights else 0
            if share >= 0.3:
                scored.append((-share / (0.8 + 0.2 * len(found) / mean) + 0.05 * ranks[i], i))
        return [sentences[i] for _, i in sorted(scored)]

    def accepts(self, d: Distribution, token: int, position: int) -> tuple[bool, float]:
        if self.config.mode == "lossless":
            chosen, margin = self.choose(d, position)
            return chosen == token, margin
        p = min(1.0, float(d.p[token] / (self.config.gamma * d.p.max())))
        if self.config.temperature == 0:
            return p > 0.5, abs(p - 0.5)
        u = uniform(self.config.seed, position, "accept")
        return u <= p, abs(u - p)

    # Algorithm 1

    def generate(self, prompt: list[int], passages: Sequence[Passage], query: str = "") -> list[Emitted]:
        self.open(passages)
        self.waiting = self.rank(passages, query) if self.config.span_start == "sentence" else []
        self.prompt, self.out, self.masked = prompt, [], set()
        self.sentence_ended = False
        self.ended = False
        while len(self.out) < self.config.max_new_tokens and not self.ended:
            self.step()
        return self.out

    def next_distribution(self) -> Distribution | None:
        d = self.distribution(self.prompt + [e.token for e in self.out], self.masked)
        if self.sentence_ended and self.config.mode != "lossless":
            least = self.config.end_probability
            likely = least is not None and float(d.p_lm[list(self.end_ids)].sum()) >= least
            if likely or int(d.p_lm.argmax()) in self.end_ids:
                self.ended = True
                return None
        return d

    def emit_own(self, d: Distribution, margin: float = math.inf) -> None:
        token, choice_margin = self.choose(d, len(self.out))
        if token in self.end_ids:
            self.ended = True
            return
        self.out.append(Emitted(token, None, d.weight, min(margin, choice_margin)))
        self.sentence_ended = False

    def emit_copied(self, place: Place, weight: float, margin: float) -> None:
        if self.is_cut(place):
            self.ended = True
            return
        self.out.append(Emitted(self.texts[place[0]][place[1]], place, weight, margin))
        self.sentence_ended = self.sentence_ends[place[0]][place[1]]

    def is_cut(self, place: Place) -> bool:
        """Would a sentence begin here, right behind a copied one, that the limit cuts?"""
        if not self.config.whole_sentences or not self.sentence_ended or self.config.mode == "lossless":
            return False
        ends = self.sentence_ends[place[0]][place[1] :]
        rest = ends.index(True) + 1 if True in ends else len(ends)
        return len(self.out) + rest > self.config.max_new_tokens

    def step(self) -> None:
        d = self.next_distribution()
        if d is None:
            return
        token, choice_margin = self.choose(d, len(self.out))
        if self.config.mode == "lossless":
            self.lossless_step(d)
            return
        start, start_margin = self.span_start(d, token)
        if start is None or token in self.end_ids:
            self.emit_own(d, start_margin)
            return
        self.follow(*start, (d.weight, min(choice_margin, start_margin)))

    def lossless_step(self, d: Distribution) -> None:
        """The LM's own token; then what stands behind the longest suffix that occurs in the passages."""
        self.emit_own(d)
        text = self.prompt + [e.token for e in self.out]
        found = [
            (-length, number, position)
            for number, tokens in enumerate(self.texts)
            for position in range(len(tokens))
            if (length := common_suffix(text, tokens[: position + 1])) >= 2
        ]
        if found and not self.ended:
            _, number, position = min(found)
            self.follow(number, position + 1, None)

    def follow(self, passage: int, position: int, first: tuple[float, float] | None) -> None:
        """Copy from a place on, n-gram by n-gram; `first` is given where the first token is chosen already."""
        while position < len(self.texts[passage]) and len(self.out) < self.config.max_new_tokens:
            complete, length = self.ngram(passage, position, first)
            if not complete or length == 0:
                return
            position += length
            first = None

    def ngram(self, passage: int, start: int, first: tuple[float, float] | None) -> tuple[bool, int]:
        """Verify one draft; say whether all of it was accepted, and how many tokens were."""
        accepted: set[Place] = set()
        complete = True
        for position in range(start, min(start + self.config.span_tokens, len(self.texts[passage]))):
            if len(self.out) == self.config.max_new_tokens or (passage, position) in self.masked:
                break
            if position == start and first is not None:
                self.emit_copied((passage, position), *first)
                if self.ended:
                    return False, 0
                accepted.add((passage, position))
                continue
            d = self.next_distribution()
            if d is None:
                complete = False
                break
            good, margin = self.accepts(d, self.texts[passage][position], len(self.out))
            if not good:
                self.emit_own(d, margin)
                complete = False
                break
            self.emit_copied((passage, position), d.weight, min(margin, d.margin))
            if self.ended:
                complete = False
                break
            accepted.add((passage, position))
        if self.config.mode != "lossless":
            self.masked |= accepted
        return complete, len(accepted)


def common_suffix(left: list[int], right: list[int]) -> int:
    """How many tokens two texts have in common at their ends."""
    length = 0
    while length < min(len(left), len(right)) and left[-1 - length] == right[-1 - length]:
        length += 1
    return length


def ends_sentence(text: str, end: int) -> bool:
    """Whether the text up to `end` ends a sentence there."""
    if end < 0:
        return False
    before, after = text[:end], text[end:]
    if re.search(r"[。！？｡]+[\"'”’」』）]*$", before) and not re.match(r"[。！？｡\"'”’」』）]", after):
        return True
    closed = re.search(r"[.!?…][\"'”’»)\]]*$", before) is not None
    return closed and (not after or after[0].isspace())
