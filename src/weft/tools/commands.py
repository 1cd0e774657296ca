"""The commands of `weft`, with their options. Each command's module is imported when the command is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from . import device, fm, service
from ._command import Command, Group, option, switch
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
    provider: Annotated[_Text, option("NAME", "Provider.", "--provider", "-p")] = None,
    fabric: Annotated[_Text, option("NAME", "Fabric.", "--fabric", "-f")] = None,
    domain: Annotated[_Text, option("NAME", "Domain.", "--domain", "-d")] = None,
    caps: Annotated[_Text, option("CAP,...", "Capabilities: rma,atomic ...", "--caps", "-c")] = None,
    mode: Annotated[_Text, option("MODE,...", "Modes that the application honours.", "--mode", "-m")] = None,
    mr_mode: Annotated[
        _Text, option("MODE,...", "Registration modes that the application honours.", "--mr-mode", "--mr_mode")
    ] = None,
    ep_type: Annotated[_Text, option("TYPE", "Endpoint type: rdm, msg, dgram.", "--ep-type", "--ep_type", "-t")] = None,
    addr_format: Annotated[
        _Text, option("FORMAT", "Address format: addr_str ...", "--addr-format", "--addr_format", "-a")
    ] = None,
    threading: Annotated[_Text, option("LEVEL", "Threading: safe, fid, domain ...")] = None,
    progress: Annotated[_Text, option("HOW", "Progress: auto, manual.")] = None,
    msg_order: Annotated[
        _Text, option("ORDER,...", "Transmit order: rma_waw ...", "--msg-order", "--msg_order")
    ] = None,
    inject_size: Annotated[
        _Text, option("BYTES", "Injects at least these bytes.", "--inject-size", "--inject_size")
    ] = None,
    max_msg_size: Annotated[
        _Text, option("BYTES", "Transfers at least these bytes.", "--max-msg-size", "--max_msg_size")
    ] = None,
    node: Annotated[_Text, option("NAME", "Destination: a node, or a whole address.", "--node", "-n")] = None,
    service: Annotated[_Text, option("N", "Destination: an endpoint number.", "--service", "--port", "-P")] = None,
    client: Annotated[
        _Text, option("CLIENT", "Hints of a C program, and the answers: mpich, openmpi, nixl, impi, pingpong.", "--for")
    ] = None,
    why: Annotated[bool, switch("Show each offer, and the hints that rejected it.", "--why")] = False,
    brief: Annotated[bool, switch("One line for each offer.", "--list", "-l")] = False,
    verbose: Annotated[bool, switch("Every field.", "--verbose", "-v")] = False,
    env: Annotated[bool, switch("Only the settings from the environment.", "--env", "-e")] = False,
    json: Annotated[bool, switch("One JSON object.", "--json")] = False,
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
        bool, switch("Show only the search for the CXI devices' authorization keys; opens nothing.", "--cxi")
    ] = False,
    watch: Annotated[
        bool, switch("Show which messages of CXI endpoints are stuck, and why, until Ctrl-C.", "--watch")
    ] = False,
    client: Annotated[
        _Text, option("CLIENT", "Whether a client chooses Weft here, and why not: mpich, openmpi, nixl, impi.", "--for")
    ] = None,
    once: Annotated[bool, switch("With --watch: show it once; exits with 1 if anything is stuck.", "--once")] = False,
    json: Annotated[bool, switch("One JSON object.", "--json")] = False,
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
        option(
            "NAME",
            "Provider: weft, cxi; ofi:shm, ofi:tcp ... of a real libfabric, beside Weft's. [default: the first]",
            "--provider",
            "-p",
        ),
    ] = None,
    sizes: Annotated[
        _Text,
        option(
            "SIZES",
            f"Bytes, with K, M, G as powers of 1024. [default: {SIZES}; with --quick {SIZES_QUICK}]. fetch_add "
            "and match are always 8 bytes, inject_write at most the endpoint's inject_size.",
        ),
    ] = None,
    quick: Annotated[bool, switch("Done within 20 seconds.", "--quick")] = False,
    seconds: Annotated[float | None, option("S", "Time for all rows together, without the start of each.")] = None,
    plot: Annotated[Path | None, option("FILE", "Also draw latency and bandwidth: .png or .svg.")] = None,
    server: Annotated[bool, switch("Start second processes for --connect, until Ctrl-C.", "--server")] = False,
    name: Annotated[_Text, option("NAME", "The server's name. [default: perf]")] = None,
    listen: Annotated[
        _Text, option("tcp://HOST:PORT", "Serve other hosts at this address; both hosts need the same WEFT_SECRET.")
    ] = None,
    connect: Annotated[_Text, option("NAME|HOST:PORT", "Measure against a process of this server.")] = None,
    json: Annotated[
        bool,
        switch(
            "One JSON object a line: op, path, size, latency_ns_median, latency_ns_p99, rate_per_s, "
            "bandwidth_GBps, limit_name, limit_value, limit_share, depth; null where a field does not apply.",
            "--json",
        ),
    ] = False,
) -> None:
    from . import perf as command

    raise typer.Exit(
        command.perf(ops, path, sizes, quick, json, plot, server, name, connect, seconds, listen, provider)
    )


@app.command(cls=Command, context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[_Many, typer.Argument(metavar="PROGRAM [ARGUMENT...]", show_default=False)] = None,
    provider: Annotated[_Text, option("NAME", "Provider; without it, CXI.", "--provider", "-p")] = None,
    hosts: Annotated[_Text, option("HOST,...", "All hosts of a job, whose programs reach each other by tcp.")] = None,
    show: Annotated[bool, switch("Print the variables, and run nothing.", "--show")] = False,
    explain: Annotated[bool, switch("At the end, print what was refused, and why.", "--explain")] = False,
    vni: Annotated[_Text, option("auto|N,...", "A job with VNIs and a service of its own; auto: a free VNI.")] = None,
    limit: Annotated[_Many, option("KIND=MOST[:RESERVED]", "The same, with limits, as `weft service create`.")] = None,
    nics: Annotated[int | None, option("N", "NICs that this job alone has. [the host's]", min=1, max=10)] = None,
    reorder: Annotated[int | None, option("SEED", "What no rule orders is done in a random order.", min=0)] = None,
) -> None:
    """Run a C program on Weft's NIC, unmodified: weft run -- PROGRAM ...

    Sets the variables by which libfabric loads Weft's providers, and by which MPI libraries choose them. The program
    needs a libfabric of its own, 1.9 or later, as every program of libfabric has. An MPI job over several hosts:

    mpiexec -hosts a,b -ppn 2 -n 4 weft run --hosts a,b -- PROGRAM ...
    """
    from . import run as it

    job = it.JobOptions(vni, limit or (), nics, reorder)
    raise typer.Exit(it.run(command or [], provider, hosts, show, explain, job))


@app.command(cls=Command, context_settings={"allow_interspersed_args": False})
def launch(
    command: Annotated[list[str], typer.Argument(metavar="PROGRAM [ARGUMENT...]", show_default=False)],
    size: Annotated[int, option("N", "Processes.", "-n")] = 1,
    vni: Annotated[str, option("auto|N,...", "VNIs of the job; auto: free ones.")] = "auto",
    vnis: Annotated[int, option("N", "Number of VNIs, with --vni auto.")] = 1,
    device: Annotated[_Many, option("DEVICE", "Devices; repeated. [all that are up]")] = None,
    tclass: Annotated[_Many, option("CLASS", "Traffic classes; repeated. [all]")] = None,
    limit: Annotated[_Many, option("KIND=MOST[:RESERVED]", "Limits of the service, as `weft service create`.")] = None,
    grace: Annotated[
        float, option("S", "Time between SIGTERM and SIGKILL, when a process fails or the job ends.")
    ] = 5.0,
    keep_going: Annotated[bool, switch("A failure does not end the others.", "--keep-going")] = False,
    verbose: Annotated[bool, switch("Show the job's VNIs, services and variables.", "--verbose", "-v")] = False,
    collectives: Annotated[
        int | None,
        option(
            "N", "Register the job with a Fabric Manager, for N multicast addresses; 0: any number.", min=0, max=8192
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
    provider: Annotated[_Text, option("NAME", "Provider; without it, CXI.", "-p")] = None,
    interface: Annotated[_Text, option("DEVICE", "Own interface.", "-s")] = None,
    source: Annotated[_Text, option("PID", "Own PID (source port).", "-B")] = None,
    dest: Annotated[_Text, option("PID", "The server's PID (destination port).", "-P")] = None,
    sizes: Annotated[str, option("SIZES", "Bytes, with K and M.", "-S")] = FABTEST_SIZES,
    count: Annotated[int, option("N", "Iterations of each size.", "-I", min=1)] = 1000,
    op: Annotated[str, option("OP", "rma_bw: write or read.", "-o")] = "write",
    check: Annotated[bool, switch("Verify the data.", "-v")] = False,
    oob: Annotated[bool, switch("Of fabtests: over IP sockets. Refused.", "-b", "-E")] = False,
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
    source_port: Annotated[_Text, option("PORT", "Own port of the control connection. [server: 47592]", "-B")] = None,
    dest_port: Annotated[_Text, option("PORT", "The server's port of the control connection. [47592]", "-P")] = None,
    domain: Annotated[_Text, option("NAME", "Domain.", "-d")] = None,
    provider: Annotated[_Text, option("NAME", "Provider: weft, cxi.", "-p")] = None,
    ep_type: Annotated[str, option("TYPE", f"Endpoint type: {', '.join(EP_TYPES)}.", "-e")] = "rdm",
    iterations: Annotated[int, option("N", "Round trips of each size.", "-I", min=1)] = ITERATIONS,
    size: Annotated[
        _Text, option("BYTES|all", f"One size, or all. [{','.join(map(str, PINGPONG_SIZES))}]", "-S")
    ] = None,
    mode: Annotated[str, option("MODE", f"Messages: {', '.join(MODES)}.", "-m")] = "msg",
    check: Annotated[bool, switch("Check the data of each message.", "-c")] = False,
    ipv6: Annotated[bool, switch("Control connection over IPv6.", "-6")] = False,
    verbose: Annotated[bool, switch("Say what happens, on stderr.", "-v")] = False,
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
    watch: Annotated[bool, switch("Repeat until Ctrl-C.", "--watch", "-w")] = False,
    seconds: Annotated[float, option("S", "Time between two readings.")] = 1.0,
    times: Annotated[int, option("N", "Number of readings; 0: no limit.")] = 0,
    json: Annotated[bool, switch("One JSON object for each reading.", "--json")] = False,
) -> None:
    """Show the counters of a CXI device: sums over all processes."""
    from . import telemetry as command

    raise typer.Exit(command.telemetry(device, counters or [], watch, seconds, times, json))


@app.command(cls=Command)
def top(
    once: Annotated[bool, switch("Show it once, with the rates of half a second.", "--once")] = False,
    interval: Annotated[float, option("S", "Time between two looks.")] = 1.0,
    pid: Annotated[list[int] | None, option("PID", "Only this process; repeated. [all]")] = None,
    json: Annotated[bool, switch("One JSON object for each look.", "--json")] = False,
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
    records: Annotated[int, option("N", "The newest records that each process keeps, of 64 bytes.")] = 1 << 18,
) -> None:
    """Run a program, and write a timeline of what its processes do with Weft: weft trace run.json -- PROGRAM ...

    ui.perfetto.dev and chrome://tracing open it: operations from post to completion, calls by thread, matches,
    triggers, stalls, flow control. Child processes are included, and processes that were killed. Exits with the
    program's status.
    """
    from . import trace as it

    raise typer.Exit(it.trace(out, command, records))


@app.command(cls=Command)
def ls(json: Annotated[bool, switch("One JSON object.", "--json")] = False) -> None:
    """Show the named arrays of this user: owner, shape, dtype, size, access, age, and whether they are kept.

    The owner is the process that shared the array; of a kept array the process that made it, which may have ended.
    """
    from . import keep as it

    raise typer.Exit(it.ls(json))


@app.command(cls=Command)
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)],
    json: Annotated[bool, switch("One JSON object.", "--json")] = False,
) -> None:
    """End kept arrays (share(keep=True)): their names go, and processes that have attached them get an error.

    An array that is not kept ends with the process that shares it. Exits with 1 if a name could not be removed.
    """
    from . import keep as it

    raise typer.Exit(it.rm(names, json))


@app.command(cls=Command)
def keep(
    stay: Annotated[bool, switch("Do not end when nothing is kept.", "--stay")] = False,
) -> None:
    """Keep arrays for other processes, in this terminal: the process that share(keep=True) starts on demand.

    There is one for a user and a registry. It ends when nothing is kept, or by Ctrl-C or SIGTERM: then its arrays end.
    """
    from . import keep as it

    raise typer.Exit(it.keep(stay))
