"""The secret key from which surrogates are derived."""

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from hansa.core.errors import UserError

KEY_NAME = ".hansa-key"


def surrogate_key(key_file: Path | None, folder: Path, out: Path | None = None) -> str:
    """The key in ``key_file``; without one, the key in ``folder``, which is created on first use.

    A created key file is readable by its owner only. Raises `UserError` if ``key_file`` is missing or empty, or lies in
    the folder ``out`` of the de-identified text: a person who has both can undo the replacement of known values.
    """
    given = (key_file or folder / KEY_NAME).resolve()
    if out is not None and given.is_relative_to(out.resolve()):
        raise UserError(
            f"{given}: the key lies in the output folder {out}; keep it elsewhere, and name it with --key-file"
        )
    if key_file is not None:
        if not key_file.is_file():
            raise UserError(
                f"{key_file}: there is no such key file; create one, or omit --key-file to have one created"
            )
        key = key_file.read_text(encoding="utf-8").strip()
        if not key:
            raise UserError(f"{key_file}: the key file is empty; write a long random line into it")
        return key
    own = folder / KEY_NAME
    if own.exists():
        return surrogate_key(own, folder)
    folder.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=folder)  # readable by its owner only
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(secrets.token_hex(32) + "\n")
    with suppress(FileExistsError):  # another process created the key first: that key is used
        os.link(draft, own)
    os.unlink(draft)
    return surrogate_key(own, folder)
