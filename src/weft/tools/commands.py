"""The commands of `weft`, with their options. Each command's module is imported when the command is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from . import device, fm, service
from ._command import Command, Group
from .fabtest import SIZES as FABTEST_SIZES
from .fabtest import TESTS as FABTESTS
from .perf import COLUMNS, OPS, PATHS, SIZES, SIZES_QUICK
from .pingpong import EP_TYPES, ITERATIONS, MODES
from .pingpong import SIZES as PINGPONG_SIZES

app = typer.Typer(
    name="weft",
    cls=Group,
    help="Weft: a memory fabric in software.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def _weft(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.add_typer(device.app, name="device")
app.add_typer(service.app, name="service")
app.add_typer(fm.app, name="fm")

_Text = str | None  # typer reads annotations at run time
_Many = list[str] | None


@app.command(cls=Command)
def info(
    provider: Annotated[_Text, typer.Option("--provider", "-p", metavar="NAME", help="Provider.")] = None,
    fabric: Annotated[_Text, typer.Option("--fabric", "-f", metavar="NAME", help="Fabric.")] = None,
    domain: Annotated[_Text, typer.Option("--domain", "-d", metavar="NAME", help="Domain.")] = None,
    caps: Annotated[_Text, typer.Option("--caps", "-c", metavar="CAP,...", help="Capabilities: rma,atomic ...")] = None,
    mode: Annotated[
        _Text, typer.Option("--mode", "-m", metavar="MODE,...", help="Modes that the application honours.")
    ] = None,
    mr_mode: Annotated[
        _Text,
        typer.Option(
            "--mr-mode", "--mr_mode", metavar="MODE,...", help="Registration modes that the application honours."
        ),
    ] = None,
    ep_type: Annotated[
        _Text, typer.Option("--ep-type", "--ep_type", "-t", metavar="TYPE", help="Endpoint type: rdm, msg, dgram.")
    ] = None,
    addr_format: Annotated[
        _Text,
        typer.Option("--addr-format", "--addr_format", "-a", metavar="FORMAT", help="Address format: addr_str ..."),
    ] = None,
    threading: Annotated[_Text, typer.Option(metavar="LEVEL", help="Threading: safe, fid, domain ...")] = None,
    progress: Annotated[_Text, typer.Option(metavar="HOW", help="Progress: auto, manual.")] = None,
    msg_order: Annotated[
        _Text, typer.Option("--msg-order", "--msg_order", metavar="ORDER,...", help="Transmit order: rma_waw ...")
    ] = None,
    inject_size: Annotated[
        _Text, typer.Option("--inject-size", "--inject_size", metavar="BYTES", help="Injects at least these bytes.")
    ] = None,
    max_msg_size: Annotated[
        _Text, typer.Option("--max-msg-size", "--max_msg_size", metavar="BYTES", help="Transfers at least these bytes.")
    ] = None,
    node: Annotated[
        _Text, typer.Option("--node", "-n", metavar="NAME", help="Destination: a node, or a whole address.")
    ] = None,
    service: Annotated[
        _Text, typer.Option("--service", "--port", "-P", metavar="N", help="Destination: an endpoint number.")
    ] = None,
    client: Annotated[
        _Text,
        typer.Option(
            "--for",
            metavar="CLIENT",
            help="Hints of a C program, and the answers: mpich, openmpi, nixl, impi, pingpong.",
        ),
    ] = None,
    why: Annotated[bool, typer.Option("--why", help="Show each offer, and the hints that rejected it.")] = False,
    brief: Annotated[bool, typer.Option("--list", "-l", help="One line for each offer.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every field.")] = False,
    env: Annotated[bool, typer.Option("--env", "-e", help="Only the settings from the environment.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what providers offer: capabilities, modes, limits, versions; and the settings in force.

    Options are hints, as in fi_info: each reduces the output. Names are those of the man pages, in upper or lower case,
    with or without FI_. Exits with 1 if nothing matches.
    """
    from . import info as command

    wishes = command.Wishes(
        node, service, provider, fabric, domain, caps, mode, mr_mode, ep_type, addr_format, threading, progress,
        msg_order, inject_size, max_msg_size,
    )  # fmt: skip
    if client is not None:
        switches = {"why": why, "brief": brief, "verbose": verbose, "env": env, "json": json}
        given = [name for name, value in {**vars(wishes), **switches}.items() if value not in (None, False)]
        raise typer.Exit(command.for_client(client, given))
    raise typer.Exit(command.info(wishes, why=why, as_json=json, brief=brief, verbose=verbose, env=env))


@app.command(cls=Command)
def doctor(
    cxi: Annotated[
        bool, typer.Option("--cxi", help="Show only the search for the CXI devices' authorization keys; opens nothing.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show which messages of CXI endpoints are stuck, and why, until Ctrl-C."),
    ] = False,
    client: Annotated[
        _Text,
        typer.Option(
            "--for",
            metavar="CLIENT",
            help="Whether a client chooses Weft here, and why not: mpich, openmpi, nixl, impi.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With --watch: show it once; exits with 1 if anything is stuck.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what this machine allows, the paths that data takes, why not other paths, and remedies.

    Tests each fact, with a second process. Exits with 0 if Weft works, even if not on every path.
    """
    if once and not watch:
        from ._text import UsageError

        raise UsageError("--once goes with --watch")
    if client is not None:
        from ._doctor_for import doctor_for

        if cxi or watch:
            from ._text import UsageError

            raise UsageError("--for goes with --json alone")
        raise typer.Exit(doctor_for(client, json))
    if watch:
        from ._watch import watch as command_of_watch

        raise typer.Exit(command_of_watch(once, json))
    if cxi:
        from ._cxi import doctor_cxi

        raise typer.Exit(doctor_cxi(json))
    from . import doctor as command

    raise typer.Exit(command.doctor(json))


@app.command(cls=Command)
def demo() -> None:
    """Two processes and one array: one writes, the other sees; four figures, each beside its limit."""
    from . import demo as command

    raise typer.Exit(command.demo())


_PERF_HELP = f"""Measure one-sided operations and messages between two processes, and the limits of this machine.

Starts and ends its own second process; or uses two terminals of a host: --server in one, --connect in the other;
or two hosts: --server --listen tcp://0.0.0.0:7000 on one, --connect HOST:7000 on the other.
Prints a table, or with --json one object for each line.

\b
{COLUMNS}
"""


@app.command(cls=Command, help=_PERF_HELP)
def perf(
    ops: Annotated[str, typer.Option(help=f"Operations: {','.join(OPS)}; or all.")] = "all",
    path: Annotated[
        str, typer.Option(help=f"Paths: {','.join(PATHS)}; or all. With -p ofi:NAME also ofi, the provider's own.")
    ] = "all",
    provider: Annotated[
        _Text,
        typer.Option(
            "--provider",
            "-p",
            metavar="NAME",
            help="Provider: weft, cxi; ofi:shm, ofi:tcp ... of a real libfabric, beside Weft's. [default: the first]",
        ),
    ] = None,
    sizes: Annotated[
        _Text,
        typer.Option(
            metavar="SIZES",
            help=f"Bytes, with K, M, G as powers of 1024. [default: {SIZES}; with --quick {SIZES_QUICK}]. fetch_add "
            "and match are always 8 bytes, inject_write at most the endpoint's inject_size.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Done within 20 seconds.")] = False,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Time for all rows together, without the start of each.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw latency and bandwidth: .png or .svg.")
    ] = None,
    server: Annotated[
        bool, typer.Option("--server", help="Start second processes for --connect, until Ctrl-C.")
    ] = False,
    name: Annotated[_Text, typer.Option(metavar="NAME", help="The server's name. [default: perf]")] = None,
    listen: Annotated[
        _Text,
        typer.Option(
            metavar="tcp://HOST:PORT", help="Serve other hosts at this address; both hosts need the same WEFT_SECRET."
        ),
    ] = None,
    connect: Annotated[
        _Text, typer.Option(metavar="NAME|HOST:PORT", help="Measure against a process of this server.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a line: op, path, size, latency_ns_median, latency_ns_p99, rate_per_s, "
            "bandwidth_GBps, limit_name, limit_value, limit_share, depth; null where a field does not apply.",
        ),
    ] = False,
) -> None:
    from . import perf as command

    raise typer.Exit(
        command.perf(ops, path, sizes, quick, json, plot, server, name, connect, seconds, listen, provider)
    )


@app.command(cls=Command, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[_Many, typer.Argument(metavar="PROGRAM [ARGUMENT...]", show_default=False)] = None,
    provider: Annotated[
        _Text, typer.Option("--provider", "-p", metavar="NAME", help="Provider; without it, CXI.")
    ] = None,
    hosts: Annotated[
        _Text, typer.Option(metavar="HOST,...", help="All hosts of a job, whose programs reach each other by tcp.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the variables, and run nothing.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="At the end, print what was refused, and why.")] = False,
    vni: Annotated[
        _Text, typer.Option(metavar="auto|N,...", help="A job with VNIs and a service of its own; auto: a free VNI.")
    ] = None,
    limit: Annotated[
        _Many, typer.Option(metavar="KIND=MOST[:RESERVED]", help="The same, with limits, as `weft service create`.")
    ] = None,
    nics: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=10, help="NICs that this job alone has. [the host's]")
    ] = None,
    reorder: Annotated[
        int | None, typer.Option(metavar="SEED", min=0, help="What no rule orders is done in a random order.")
    ] = None,
) -> None:
    """Run a C program on Weft's NIC, unmodified: weft run -- PROGRAM ...

    Sets the variables by which libfabric loads Weft's providers, and by which MPI libraries choose them. The program
    needs a libfabric of its own, 1.9 or later, as every program of libfabric has. An MPI job over several hosts:

    mpiexec -hosts a,b -ppn 2 -n 4 weft run --hosts a,b -- PROGRAM ...
    """
    from . import run as it

    job = it.JobOptions(vni, limit or (), nics, reorder)
    raise typer.Exit(it.run(command or [], provider, hosts, show, explain, job))


@app.command(cls=Command, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def launch(
    command: Annotated[list[str], typer.Argument(metavar="PROGRAM [ARGUMENT...]", show_default=False)],
    size: Annotated[int, typer.Option("-n", metavar="N", help="Processes.")] = 1,
    vni: Annotated[str, typer.Option(metavar="auto|N,...", help="VNIs of the job; auto: free ones.")] = "auto",
    vnis: Annotated[int, typer.Option(metavar="N", help="Number of VNIs, with --vni auto.")] = 1,
    device: Annotated[_Many, typer.Option(metavar="DEVICE", help="Devices; repeated. [all that are up]")] = None,
    tclass: Annotated[_Many, typer.Option(metavar="CLASS", help="Traffic classes; repeated. [all]")] = None,
    limit: Annotated[
        _Many, typer.Option(metavar="KIND=MOST[:RESERVED]", help="Limits of the service, as `weft service create`.")
    ] = None,
    grace: Annotated[
        float, typer.Option(metavar="S", help="Time between SIGTERM and SIGKILL, when a process fails or the job ends.")
    ] = 5.0,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="A failure does not end the others.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the job's VNIs, services and variables.")
    ] = False,
    collectives: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Register the job with a Fabric Manager, for N multicast addresses; 0: any number.",
            min=0,
            max=8192,
        ),
    ] = None,
) -> None:
    """Run a job on the CXI devices with its own VNI and services: weft launch -n 4 -- PROGRAM ...

    Works like a launcher on Slingshot: allocates VNIs, makes a service on each device, starts the processes with
    SLINGSHOT_VNIS, SLINGSHOT_DEVICES, SLINGSHOT_SVC_IDS, SLINGSHOT_TCS (and WEFT_RANK, WEFT_SIZE), passes signals on,
    and frees everything when the last process has ended, also if the launcher is killed. Exits with the status of the
    first failed process.

    With --collectives the processes also get FI_CXI_COLL_FABRIC_MGR_URL, FI_CXI_COLL_MCAST_TOKEN, FI_CXI_COLL_JOB_ID:
    of the manager at that address, if the variable is set, or of one that the launcher runs itself.
    """
    from . import launch as it

    raise typer.Exit(
        it.launch(
            command, size, vni, vnis, device or [], tclass or [], limit or [], grace, keep_going, verbose, collectives
        )
    )


@app.command(cls=Command)
def fabtest(
    test: Annotated[str, typer.Argument(metavar="TEST", help=", ".join(FABTESTS), show_default=False)],
    address: Annotated[
        _Text, typer.Argument(metavar="[ADDRESS]", help="The server's NIC; without it, this is the server.")
    ] = None,
    provider: Annotated[_Text, typer.Option("-p", metavar="NAME", help="Provider; without it, CXI.")] = None,
    interface: Annotated[_Text, typer.Option("-s", metavar="DEVICE", help="Own interface.")] = None,
    source: Annotated[_Text, typer.Option("-B", metavar="PID", help="Own PID (source port).")] = None,
    dest: Annotated[_Text, typer.Option("-P", metavar="PID", help="The server's PID (destination port).")] = None,
    sizes: Annotated[str, typer.Option("-S", metavar="SIZES", help="Bytes, with K and M.")] = FABTEST_SIZES,
    count: Annotated[int, typer.Option("-I", metavar="N", help="Iterations of each size.", min=1)] = 1000,
    op: Annotated[str, typer.Option("-o", metavar="OP", help="rma_bw: write or read.")] = "write",
    check: Annotated[bool, typer.Option("-v", help="Verify the data.")] = False,
    oob: Annotated[bool, typer.Option("-b", "-E", help="Of fabtests: over IP sockets. Refused.")] = False,
) -> None:
    """Run a benchmark of fabtests, with its options: a server here, a client there.

    weft fabtest rma_bw -B 10 -s cxi0, then weft fabtest rma_bw -P 10 0x840; `weft device get cxi0 nic_addr` prints the
    address.

    Over a real libfabric: weft fabtest rma_bw -p ofi:tcp -s ADDRESS, then weft fabtest rma_bw -p ofi:tcp ADDRESS; with
    -p ofi:shm the client gets the name that the server prints.
    """
    from . import fabtest as command

    raise typer.Exit(
        command.fabtest(
            test, address, provider=provider, interface=interface, source_pid=source, dest_pid=dest, sizes=sizes,
            count=count, op=op, check=check, oob=oob,
        )
    )  # fmt: skip


@app.command(cls=Command)
def pingpong(
    server: Annotated[
        _Text, typer.Argument(metavar="SERVER", help="The server's host name or IP address; without it, the server.")
    ] = None,
    source_port: Annotated[
        _Text, typer.Option("-B", metavar="PORT", help="Own port of the control connection. [server: 47592]")
    ] = None,
    dest_port: Annotated[
        _Text, typer.Option("-P", metavar="PORT", help="The server's port of the control connection. [47592]")
    ] = None,
    domain: Annotated[_Text, typer.Option("-d", metavar="NAME", help="Domain.")] = None,
    provider: Annotated[_Text, typer.Option("-p", metavar="NAME", help="Provider: weft, cxi.")] = None,
    ep_type: Annotated[str, typer.Option("-e", metavar="TYPE", help=f"Endpoint type: {', '.join(EP_TYPES)}.")] = "rdm",
    iterations: Annotated[int, typer.Option("-I", metavar="N", help="Round trips of each size.", min=1)] = ITERATIONS,
    size: Annotated[
        _Text, typer.Option("-S", metavar="BYTES|all", help=f"One size, or all. [{','.join(map(str, PINGPONG_SIZES))}]")
    ] = None,
    mode: Annotated[str, typer.Option("-m", metavar="MODE", help=f"Messages: {', '.join(MODES)}.")] = "msg",
    check: Annotated[bool, typer.Option("-c", help="Check the data of each message.")] = False,
    ipv6: Annotated[bool, typer.Option("-6", help="Control connection over IPv6.")] = False,
    verbose: Annotated[bool, typer.Option("-v", help="Say what happens, on stderr.")] = False,
) -> None:
    """Send messages back and forth, as fi_pingpong does: a server here, a client there.

    weft pingpong on one side, then weft pingpong HOST on the other, with the same -e, -I, -S, -p, -m and -c. Between
    hosts both need the same WEFT_SECRET. Columns: bytes of a message, messages sent and answered, bytes in both
    directions, seconds, throughput, time of a message one way, millions of messages a second.
    """
    from . import pingpong as it

    raise typer.Exit(
        it.pingpong(
            server, source_port=source_port, dest_port=dest_port, domain=domain, provider=provider, ep_type=ep_type,
            iterations=iterations, size=size, mode=mode, check=check, verbose=verbose, ipv6=ipv6,
        )
    )  # fmt: skip


@app.command(cls=Command)
def telemetry(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="cxi0 ...")] = "cxi0",
    counters: Annotated[_Many, typer.Argument(metavar="[COUNTER...]", help="Names. [all]")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    seconds: Annotated[float, typer.Option(metavar="S", help="Time between two readings.")] = 1.0,
    times: Annotated[int, typer.Option(metavar="N", help="Number of readings; 0: no limit.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each reading.")] = False,
) -> None:
    """Show the counters of a CXI device: sums over all processes."""
    from . import telemetry as command

    raise typer.Exit(command.telemetry(device, counters or [], watch, seconds, times, json))


@app.command(cls=Command)
def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once, with the rates of half a second.")] = False,
    interval: Annotated[float, typer.Option(metavar="S", help="Time between two looks.")] = 1.0,
    pid: Annotated[list[int] | None, typer.Option(metavar="PID", help="Only this process; repeated. [all]")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each look.")] = False,
) -> None:
    """Show what this user's processes do with Weft, live: NICs, endpoints, queues, counters, retries, flow control.

    Processes answer only while somebody looks. One that is stopped, or that makes no progress (WEFT_ENGINE=manual),
    gives no answer; its last one is shown as stale.
    """
    from . import top as command

    raise typer.Exit(command.top(once, json, interval, pid or []))


@app.command(cls=Command)
def trace(
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="The timeline.", show_default=False)],
    command: Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENT...]", show_default=False)],
    records: Annotated[
        int, typer.Option(metavar="N", help="The newest records that each process keeps, of 64 bytes.")
    ] = 1 << 18,
) -> None:
    """Run a program, and write a timeline of what its processes do with Weft: weft trace run.json -- PROGRAM ...

    ui.perfetto.dev and chrome://tracing open it: operations from post to completion, calls by thread, matches,
    triggers, stalls, flow control. Child processes are included, and processes that were killed. Exits with the
    program's status.
    """
    from . import trace as it

    raise typer.Exit(it.trace(out, command, records))


@app.command(cls=Command)
def ls(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Show the named arrays of this user: owner, shape, dtype, size, access, age, and whether they are kept.

    The owner is the process that shared the array; of a kept array the process that made it, which may have ended.
    """
    from . import keep as it

    raise typer.Exit(it.ls(json))


@app.command(cls=Command)
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """End kept arrays (share(keep=True)): their names go, and processes that have attached them get an error.

    An array that is not kept ends with the process that shares it. Exits with 1 if a name could not be removed.
    """
    from . import keep as it

    raise typer.Exit(it.rm(names, json))


@app.command(cls=Command)
def keep(
    stay: Annotated[bool, typer.Option("--stay", help="Do not end when nothing is kept.")] = False,
) -> None:
    """Keep arrays for other processes, in this terminal: the process that share(keep=True) starts on demand.

    There is one for a user and a registry. It ends when nothing is kept, or by Ctrl-C or SIGTERM: then its arrays end.
    """
    from . import keep as it

    raise typer.Exit(it.keep(stay))
