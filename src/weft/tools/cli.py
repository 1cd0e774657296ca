"""The command line: `weft`. A command's modules are loaded when the command is called."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

__all__ = ["app", "main"]

if TYPE_CHECKING:  # what __getattr__ imports at run time
    from .commands import app as app
else:

    def __getattr__(name: str) -> Any:
        if name == "app":
            from .commands import app

            return app
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """The console script."""
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output has closed it: `weft info | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ModuleNotFoundError as e:
        from .._extras import missing

        if (text := missing(e, "the command")) is None:
            raise
        print(f"weft: {text}; `weft info` works without", file=sys.stderr)
        sys.exit(1)
    except (ValueError, OSError) as e:
        # Only errors of Weft are shown as messages. Their modules need not be imported here.
        if _is(e, "weft.tools._text", "UsageError"):
            print(f"weft: {e}", file=sys.stderr)
            sys.exit(2)
        if not _is(e, "weft.errors", "FabricError"):
            raise
        print(f"weft: {e}", file=sys.stderr)
        sys.exit(1)


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["info"]:
        from ._quick import parse

        given = parse(arguments[1:])
        if given is not None:
            from . import info

            status = info.run(given)
            sys.stdout.flush()
            sys.exit(status)
    from .commands import app

    app(prog_name="weft")  # also under `python -m weft`, whose completion is that of the command


def _is(error: Exception, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))


if __name__ == "__main__":
    main()
