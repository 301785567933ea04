"""Clients of a secure sum tell each other which question they answer.

A server that asks different clients for sums at different atoms, or in different boxes, learns of single
clients from the total.  So the server names the question (a digest of atoms, weights and the run's settings)
when the sum is set up, and each client

- seals the digest into what it sends to each of the others, under the key that the two of them share in
  Flower's SecAgg+, before it has seen the question itself;
- adds its part only if all that it was sent carry the same digest, and the question has it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.flower.ledger import study_key
from vaneb.flower.settings import Settings

#: Record of a message, and of a client's state, that names the question.
RECORD, DIGEST = "vaneb.question", "sha256"
SIZE = 32


def digest_of(atoms: NDArray[np.float64], weights: NDArray[np.float64], settings: Settings) -> str:
    """Stands for a question, and for what it depends on: the model, and the box of the parts.

    In a box that is far from the others all parts but one client's are known.
    """
    parts = [np.ascontiguousarray(part, "<f8") for part in (atoms, weights)]
    about = json.dumps([study_key(settings), [part.shape for part in parts]], sort_keys=True).encode()
    return hashlib.sha256(about + b"".join(part.tobytes() for part in parts)).hexdigest()


def announce(message: Message, question: str) -> None:
    """At the server: name the question."""
    message.content.config_records[RECORD] = ConfigRecord({DIGEST: question})


def remembered(message: Message, context: Context) -> str:
    """At the client: the stage of a message, and in the first one a note of the question that it names."""
    stage = str(message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE])
    if stage == Stage.SETUP:
        record: Any = message.content.config_records.get(RECORD) or {}
        named = record.get(DIGEST, "")
        if not isinstance(named, str) or len(named) != 2 * SIZE:
            raise InvalidOption("secure: the server does not name its question.")
        context.state.config_records[RECORD] = ConfigRecord({DIGEST: named})
    return stage


def sealed(reply: Message, context: Context, stage: str) -> Message:
    """At the client: what goes to the others, with the digest in each envelope."""
    if stage == Stage.SHARE_KEYS:
        record: Any = reply.content.config_records[RECORD_KEY_CONFIGS]
        shared, own = _shared(context), _own(context)
        record[Key.CIPHERTEXT_LIST] = [
            encrypt(shared[node], own + text)
            for node, text in zip(record[Key.DESTINATION_LIST], record[Key.CIPHERTEXT_LIST], strict=True)
        ]
    return reply


def opened(message: Message, context: Context, stage: str) -> None:
    """At the client: open what the others have sent, if all speak of the same question."""
    from vaneb.flower.secure import question_of

    if stage != Stage.COLLECT_MASKED_VECTORS:
        return
    record: Any = message.content.config_records[RECORD_KEY_CONFIGS]
    shared, own = _shared(context), _own(context)
    texts = []
    for node, text in zip(record[Key.SOURCE_LIST], record[Key.CIPHERTEXT_LIST], strict=True):
        content = decrypt(shared[node], text)
        if content[:SIZE] != own:
            raise InvalidOption("secure: another client was asked another question.")
        texts.append(content[SIZE:])
    settings = Settings.from_run_config(context.run_config)
    if bytes.fromhex(digest_of(*question_of(message.content), settings)) != own:
        raise InvalidOption("secure: the question is not the one that was named.")
    record[Key.CIPHERTEXT_LIST] = texts


def _own(context: Context) -> bytes:
    return bytes.fromhex(str(context.state.config_records[RECORD][DIGEST]))


def _shared(context: Context) -> dict[int, bytes]:
    """Keys that this client shares with each of the others, from Flower's state."""
    state: Any = context.state.config_records[RECORD_KEY_STATE]
    return dict(zip(state["ss2_dict:K"], state["ss2_dict:V"], strict=True))
