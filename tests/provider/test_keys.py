"""Authorization keys of C programs: of address vectors (FI_AV_AUTH_KEY), and of regions; as tests/fi and tests/cxi have
them for Python programs. The calls came with libfabric 1.20."""

from __future__ import annotations

from pathlib import Path

from tests import patience
from tests.provider import support

KEYS = """keys of a vector: size of it, at most 2
fi_enable without a key: {no_key}
no bytes: Invalid argument
flags: {flags}
a key of another size: Invalid argument
a third key: No space left on device
fi_av_lookup_auth_key: the key
a key that there is not: Invalid argument
keys of a domain with its own: Invalid argument
a key after fi_enable: Device or resource busy
a peer without a key: Invalid argument
a peer with a key that there is not: Invalid argument
a stranger of VNI 7: Success, Cannot assign requested address, its key, its address
a stranger of VNI 9: Success, Cannot assign requested address, its key, its address
peers 0, 1
to VNI 7: Success, Success, a message
to VNI 9: Success, Success, a message
from VNI 7: Success, Success, a message
fi_mr_reg: {no_region}
fi_mr_regattr without keys: Invalid argument
fi_close of a vector with a region: Device or resource busy
a write of VNI 7: Success, written
a write of VNI 7 to a region of VNI 9: an error
a key that a peer uses: Device or resource busy
a key that nobody uses: no error
closed
"""


def test_vector_has_the_keys_of_its_endpoints_and_regions(programs: Path, tmp_path: Path, provider: str) -> None:
    program = support.compiled("keys", programs, support.MPICH)
    env = support.environment(provider, support.MPICH, FI_LOG_LEVEL="warn", **support.registry(tmp_path))
    more = []
    if provider == "cxi":
        command = ["-m", "weft", "service", "create", "--vni", "7-11"]
        more = [patience.run([env["WEFT_PYTHON"], *command], support.PROGRAM_S, check=True, env=env).stdout.strip()]
    done = support.run(program, provider, *more, env=env)
    assert done.stdout == KEYS.format(
        no_key="Invalid argument",
        flags="Invalid argument" if provider == "cxi" else "Flags not supported",
        no_region="Operation not supported",
    )
    assert "every peer has a key" in done.stderr
    assert "holds no authorization key" in done.stderr
    assert "max_ep_auth_key" in done.stderr
