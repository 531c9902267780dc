"""A real SLURM on this machine, in one folder: munge, slurmctld and one slurmd, no files in /etc.

    python tests/slurm/cluster.py [FOLDER]

starts one, prints the environment that makes sbatch and squeue talk to it, and stops it on Ctrl-C.
With `check` instead of a folder it only tells what is not installed.
It needs no root and no accounting. Partition `ci` is the default; a job in `urgent` preempts.
"""

import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # daemons are not on every user's PATH
BINARIES = ("munged", "slurmctld", "slurmd", "sbatch")
INSTALL = "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
CPUS = 4  # of the node, whatever the machine has

# cred_expire: a requeued job starts again after seconds instead of two minutes.
# preempt_send_user_signal: preemption sends the signal that the job asked for, as at a time limit.
CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=5
CompleteWait=0
EnforcePartLimits=ALL
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=16000
PartitionName=ci Nodes={host} Default=YES PriorityTier=10 GraceTime=30 PreemptMode=REQUEUE
PartitionName=urgent Nodes={host} PriorityTier=100
"""


def missing() -> str:
    """What a test must say if SLURM is not installed, or ""."""
    absent = [name for name in BINARIES if shutil.which(name, path=PATH) is None]
    return f"no {', '.join(absent)} on this machine: {INSTALL}" if absent else ""


class Cluster:
    """Use as a context: SLURM runs within. `environment`: of commands that talk to it."""

    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self.daemons: list[subprocess.Popen] = []
        self.environment = {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": PATH,
        }

    def __enter__(self) -> "Cluster":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)  # munge wants its socket to be within reach of all
        for name in ("run", "state", "spool", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o755)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        (self.folder / "slurm.conf").write_text(
            CONF.format(
                folder=self.folder,
                ports=_free_ports(2),
                user=getpass.getuser(),
                host=socket.gethostname().partition(".")[0],
                cpus=CPUS,
            )
        )
        munge = {
            "key-file": key,
            "socket": self.folder / "run/munge.socket",
            "pid-file": self.folder / "run/munged.pid",
            "log-file": self.folder / "log/munged",
            "seed-file": self.folder / "run/munged.seed",
        }
        try:
            self._start("munged", "--foreground", *(f"--{k}={v}" for k, v in munge.items()))
            self._wait(munge["socket"].exists)
            self._start("slurmctld", "-D")
            self._wait(lambda: self.run("scontrol", "ping", check=False).returncode == 0)
            self._start("slurmd", "-D")
            self._wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t").stdout)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if len(self.daemons) > 2:
            self.cancel()
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command of SLURM, as squeue."""
        return subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
        )

    def cancel(self) -> None:
        """Every job, and wait until the node is free."""
        self.run("scancel", "--user", getpass.getuser(), check=False)
        _until(lambda: not self.run("squeue", "-h", check=False).stdout.strip(), 60)

    def start(self, *command: str) -> None:
        """The same without waiting: scancel tries for long when a job has moved on by then."""
        quiet = subprocess.DEVNULL
        environment = {**os.environ, **self.environment}
        subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)

    def _start(self, *command: str) -> None:
        with open(self.folder / "log" / f"{command[0]}.out", "wb") as log:
            self.daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig=KILL", *command],  # dies with this process
                    env={**os.environ, **self.environment},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, ready) -> None:
        if not _until(lambda: ready() or self.daemons[-1].poll() is not None, 30) or not ready():
            logs = [file.read_text()[-2000:] for file in (self.folder / "log").iterdir()]
            raise RuntimeError("SLURM did not start:\n" + "\n".join(logs))


def _until(true, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    if reason := missing():
        sys.exit(reason)
    if sys.argv[1:] == ["check"]:
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="slurm"))
    with Cluster(folder) as cluster:
        for name, value in cluster.environment.items():
            print(f"export {name}={shlex.quote(value)}")
        print("# SLURM runs; Ctrl-C stops it", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            signal.pause()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
