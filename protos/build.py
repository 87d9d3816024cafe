"""Makes the stubs from the .proto files: as hatchling's build hook, and by `make protos`.

The stubs land beside their .proto files, where git ignores them and where the wheel and the editable install pick
them up.
"""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


def generate() -> None:
    """Writes `*_pb2.py`, `*_pb2.pyi`, `*_pb2_grpc.py` and `*_pb2_grpc.pyi` beside every .proto file.

    Raises:
        SystemExit: protoc refused a file; its own message is on stderr.
    """
    from grpc_tools import protoc  # noqa: PLC0415 - a build dependency: absent where the stubs are only imported

    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    well_known = files("grpc_tools").joinpath("_proto")
    bin_dir = Path(sys.executable).parent
    plugins = [
        f"--plugin=protoc-gen-{name}={plugin}"
        for name in ("mypy", "mypy_grpc")
        if (plugin := _find_plugin(f"protoc-gen-{name}", bin_dir))
    ]
    typed = [f"--mypy_out={ROOT}", f"--mypy_grpc_out={ROOT}"] if len(plugins) == 2 else []  # noqa: PLR2004
    outputs = [f"--python_out={ROOT}", f"--grpc_python_out={ROOT}", *typed]
    if protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", *plugins, *outputs, *sources]) != 0:
        raise SystemExit("protoc refused the .proto files")


def _find_plugin(name: str, bin_dir: Path) -> str | None:
    import shutil  # noqa: PLC0415 - kept beside its one use

    beside = bin_dir / name
    return str(beside) if beside.exists() else shutil.which(name)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, without hatchling
    pass
else:

    class StubsHook(BuildHookInterface[Any]):
        """Makes the stubs before every wheel and editable install."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
            """Called by hatchling before it collects files."""
            generate()


if __name__ == "__main__":
    generate()
