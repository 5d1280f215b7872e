# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read NVML in a child process with a deadline, because NVML itself can hang in the kernel. PRIVATE to the collection.

The child loads the library, keeps it open (closing it would tear the driver's state down where persistence is off) and answers
one line of JSON a request. A child that misses its deadline is killed and left alone: one that hangs in the driver cannot
die, and waiting for it would hang its parent too. No ansible import here: the host helper uses this file as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import time
import traceback
import typing as t
from importlib import metadata

from ._core import nvml_minimal
from ._core.errors import VllmError
from ._core.gpu_readings import Reading, TargetReader
from ._core.gpus import Gpu, GpuProcess, Host, ReadError, read_gpus, read_host
from ._core.nvml_failure import explain_nvml_failure, kernel_module_version, library_version
from ._core.procs import ProcessInfo
from ._processes import identify, read_text

try:
    import pynvml
except ImportError:
    pynvml = None

__all__ = ["Binding", "Sampler", "choose_binding"]

# Earlier releases misread the process list: the second process and those after it come back with garbage pids.
_OLDEST_BINDING = (12, 555)
_MEMORY, _EVERYTHING, _HOST = b"m", b"e", b"h"


class Binding(t.NamedTuple):
    """The Python binding in use and what an operator should know about it."""

    nvml: t.Any
    name: str
    warning: str = ""


def choose_binding() -> Binding:
    """nvidia-ml-py where it is installed and reads process lists right, else the collection's own few calls."""
    if pynvml is None:
        return Binding(nvml_minimal, "minimal")
    try:
        version = metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        return Binding(nvml_minimal, "minimal", "The Python module pynvml here is not nvidia-ml-py's, so it is not used.")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _OLDEST_BINDING:
        return Binding(
            nvml_minimal, "minimal", f"nvidia-ml-py {version} misreads process lists (12.555 or later is needed), so it is not used."
        )
    return Binding(pynvml, f"nvidia-ml-py {version}")


class Sampler:
    """Asks a child process for readings; each answer comes within ``deadline`` seconds or is a :class:`VllmError`.

    A context manager. The child starts with the first question.
    """

    def __init__(self, deadline: float = 30.0) -> None:
        self.binding = choose_binding()
        self._deadline = deadline
        self._pid: t.Optional[int] = None
        self._questions = self._answers = -1
        self._buffer = b""
        self._let_go: list[int] = []

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def memory(self) -> list[Reading]:
        """Identity, memory and processes of every GPU and MIG device: the reading to repeat."""
        return [_reading(*row) for row in self._ask(_MEMORY)]

    def everything(self) -> list[Gpu]:
        """Every GPU with all that a plan or a report needs: placement, links, health, limits."""
        return [_gpu(row) for row in self._ask(_EVERYTHING)]

    def host(self) -> Host:
        """Driver, CUDA and library versions."""
        driver, cuda, library, errors = self._ask(_HOST)
        return Host(driver, cuda, library, tuple(ReadError(*error) for error in errors))

    def close(self) -> None:
        """Let the child go. It ends by itself when its questions end; nothing waits for it."""
        if self._pid is None:
            return
        os.close(self._questions)
        os.close(self._answers)
        self._let_go.append(self._pid)
        self._pid = None
        self._bury()

    def _bury(self) -> None:
        """Take note of the children that have ended, so that many attempts leave no row of zombies."""
        self._let_go = [pid for pid in self._let_go if not _has_ended(pid)]

    def _ask(self, question: bytes) -> t.Any:
        if self._pid is None:
            self._start()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._questions, question)
        answer = json.loads(self._line())
        if "failure" in answer:
            self.close()
            failure = answer["failure"]
            raise VllmError(failure["message"], code=failure["code"], remedy=failure["remedy"], details=failure["details"])
        return answer["answer"]

    def _start(self) -> None:
        self._bury()
        question_end, self._questions = os.pipe()
        self._answers, answer_end = os.pipe()
        self._buffer = b""
        self._pid = os.fork()
        if self._pid == 0:
            _serve(self.binding.nvml, question_end, answer_end)
        os.close(question_end)
        os.close(answer_end)

    def _line(self) -> str:
        end = time.monotonic() + self._deadline
        while b"\n" not in self._buffer:
            ready, _write, _error = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise self._abandon()
            chunk = os.read(self._answers, 65536)
            if not chunk:
                raise self._died()
            self._buffer += chunk
        line, _newline, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8")

    def _abandon(self) -> VllmError:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
        self.close()
        return VllmError(
            f"NVML gave no answer within {self._deadline:g} s: it hangs in the NVIDIA driver.",
            code="nvml_hung",
            remedy="Look for NVRM and Xid lines in the kernel log and for processes in state D; a reboot of the host clears it.",
            details={"verdict": "wedged"},
        )

    def _died(self) -> VllmError:
        status = os.waitpid(self._pid, 0)[1] if self._pid else 0
        self._pid = None
        os.close(self._questions)
        os.close(self._answers)
        how = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"with status {os.WEXITSTATUS(status)}"
        return VllmError(
            f"The process that reads NVML ended {how}.", code="nvml_crashed", remedy="Check that library and driver are of one version."
        )


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _gpu(row: t.Sequence[t.Any]) -> Gpu:
    gpu = Gpu(*row)
    processes = tuple(GpuProcess(*process) for process in gpu.processes)
    errors = tuple(ReadError(*error) for error in gpu.errors)
    return gpu._replace(processes=processes, errors=errors, not_supported=tuple(gpu.not_supported), unknown=tuple(gpu.unknown))


def _reading(gpu: t.Sequence[t.Any], known: t.Mapping[str, t.Sequence[t.Any]]) -> Reading:
    return Reading(_gpu(gpu), {int(pid): ProcessInfo(*info) for pid, info in known.items()})


# ---- in the child --------------------------------------------------------------------------------------------------------


def _serve(nvml: t.Any, questions: int, answers: int) -> t.NoReturn:
    """Answer until the questions end. Never returns into the parent's code."""
    status = 1
    try:
        _keep_only(questions, answers)
        _answer_all(nvml, questions, answers)
        status = 0
    except Exception:
        _send(answers, {"failure": {"message": traceback.format_exc(), "code": "nvml_reader_bug", "remedy": "", "details": {}}})
        raise
    finally:
        os._exit(status)


def _keep_only(*kept: int) -> None:
    """A child left hanging must not hold the parent's pipes open: whoever reads those would wait for it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _answer_all(nvml: t.Any, questions: int, answers: int) -> None:
    # This variable switches NVML to a view for MPS clients in which most calls are not supported.
    os.environ.pop("NVML_MPS_DEVICE_ENUMERATION", None)
    question = os.read(questions, 1)
    if not question:
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as exc:
        _send(answers, {"failure": _failure(nvml, exc)})
        return
    targets = TargetReader(nvml, identify, read_text)
    while question:
        try:
            _send(answers, {"answer": targets.read() if question == _MEMORY else _answer(nvml, question)})
        except nvml.NVMLError as exc:
            _send(answers, {"failure": _failure(nvml, exc)})
        question = os.read(questions, 1)


def _answer(nvml: t.Any, question: bytes) -> t.Any:
    if question == _HOST:
        return read_host(nvml)
    return read_gpus(nvml, identify=identify, read_text=read_text, health=question == _EVERYTHING)


def _failure(nvml: t.Any, exc: t.Any) -> dict[str, t.Any]:
    reason = str(exc.__context__ or "")
    versions = {"kernel_version": kernel_module_version(read_text), "library_version": library_version(nvml, read_text)}
    error = explain_nvml_failure(exc.value, str(exc), reason=reason, **versions)
    return {"message": error.message, "code": error.code, "remedy": error.remedy, "details": error.details}


def _send(answers: int, record: t.Mapping[str, t.Any]) -> None:
    data = json.dumps(record).encode("utf-8") + b"\n"
    while data:
        data = data[os.write(answers, data) :]
