"""Writes a GGUF file of some kilobytes: a llama with one small layer of random weights. It babbles, and is served."""

import random
import struct
from pathlib import Path

_UINT32, _FLOAT32, _STRING, _ARRAY, _INT32 = 4, 6, 8, 9, 5
_ALIGNMENT = 32  # bytes
_WIDTH, _HIDDEN = 32, 64
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # kinds of token


def write_tiny_gguf(path: Path) -> Path:
    """Writes the model to `path`: a byte-level vocabulary, a context of 4,096 tokens."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        *"abcdefghijklmnopqrstuvwxyz",
    ]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * 27]
    head = "".join(("{% for message in messages %}", "{{ message['content'] }}", "{% endfor %}"))
    metadata = [
        ("general.architecture", _text("llama")),
        ("general.name", _text("tiny")),
        ("llama.context_length", _number(4096)),
        ("llama.embedding_length", _number(_WIDTH)),
        ("llama.block_count", _number(1)),
        ("llama.feed_forward_length", _number(_HIDDEN)),
        ("llama.attention.head_count", _number(2)),
        ("llama.attention.head_count_kv", _number(2)),
        ("llama.rope.dimension_count", _number(_WIDTH // 2)),
        ("llama.attention.layer_norm_rms_epsilon", struct.pack("<If", _FLOAT32, 1e-5)),
        ("llama.vocab_size", _number(len(tokens))),
        ("tokenizer.ggml.model", _text("llama")),
        ("tokenizer.ggml.tokens", struct.pack("<IIQ", _ARRAY, _STRING, len(tokens)) + b"".join(map(_string, tokens))),
        (
            "tokenizer.ggml.scores",
            struct.pack(f"<IIQ{len(tokens)}f", _ARRAY, _FLOAT32, len(tokens), *[0.0] * len(tokens)),
        ),
        ("tokenizer.ggml.token_type", struct.pack(f"<IIQ{len(kinds)}i", _ARRAY, _INT32, len(kinds), *kinds)),
        ("tokenizer.ggml.unknown_token_id", _number(0)),
        ("tokenizer.ggml.bos_token_id", _number(1)),
        ("tokenizer.ggml.eos_token_id", _number(2)),
        ("tokenizer.chat_template", _text(head)),
    ]
    shapes = {
        "token_embd.weight": (_WIDTH, len(tokens)),
        "output_norm.weight": (_WIDTH,),
        "output.weight": (_WIDTH, len(tokens)),
        "blk.0.attn_norm.weight": (_WIDTH,),
        "blk.0.ffn_norm.weight": (_WIDTH,),
        **{f"blk.0.attn_{name}.weight": (_WIDTH, _WIDTH) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": (_WIDTH, _HIDDEN),
        "blk.0.ffn_up.weight": (_WIDTH, _HIDDEN),
        "blk.0.ffn_down.weight": (_HIDDEN, _WIDTH),
    }
    header = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(metadata))
    header += b"".join(_string(name) + value for name, value in metadata)
    data = b""
    for name, shape in shapes.items():
        header += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _pad(_weights(name, shape))
    path.write_bytes(_pad(header) + data)
    return path


def _weights(name: str, shape: tuple[int, ...]) -> bytes:
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    source = random.Random(name)
    return struct.pack(f"<{count}f", *(1.0 if len(shape) == 1 else source.gauss(0, 0.3) for _ in range(count)))


def _pad(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % _ALIGNMENT)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _text(text: str) -> bytes:
    return struct.pack("<I", _STRING) + _string(text)


def _number(value: int) -> bytes:
    return struct.pack("<II", _UINT32, value)
