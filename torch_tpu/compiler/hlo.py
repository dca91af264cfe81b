"""The optimized program of an executable as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tpu._C import Executable


def text(executable: Executable) -> str:
    """The HLO as the compiler left it; a note instead where jaxlib's parser is older than the plugin."""
    from jaxlib import _hlo

    form, code = executable.optimized_program()
    bindings: Any = _hlo
    proto = _module(code) if form == "hlo_with_config" else code
    try:
        rendered: str = bindings.HloModule.from_serialized_hlo_module_proto(proto).to_string()
    except RuntimeError as error:
        return f"// jaxlib cannot read this program: {error}"
    return rendered


def _module(code: bytes) -> bytes:
    """Field 1 of an HloModuleProtoWithConfig, whose fields all have a length."""
    at = 0
    while at < len(code):
        tag, at = _varint(code, at)
        size, at = _varint(code, at)
        if tag >> 3 == 1:
            return code[at : at + size]
        at += size
    return code


def _varint(code: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = code[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
