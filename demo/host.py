"""A real, headless ComfyUI with this pack in it, as a context manager. The demo and the tests start theirs here."""

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import aiohttp

REPOSITORY = Path(__file__).resolve().parent.parent
PACK_NAME = "ComfyUI-ParallelDiT"
BOOT_DEADLINE_S = 180
PR_SET_PDEATHSIG = 1
PREVIEW_TYPES = (1, 4)  # ComfyUI's protocol.BinaryEventTypes: with and without metadata

EventHandler = Callable[[dict], None]

# The host is on this machine; a proxy from the environment must not come between.
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class HostError(RuntimeError):
    """The host did not start, died, or did not answer in time; the message carries the end of its log."""


class PromptError(RuntimeError):
    """The host refused a prompt, or a node failed while it ran.

    `node_errors` holds the messages of a refusal by node id, empty for a failure at run time;
    `exception_type`, `node_id` and `traceback` describe a failure at run time.
    """

    def __init__(
        self,
        message: str,
        *,
        node_errors: Mapping[str, list[str]] | None = None,
        exception_type: str = "",
        node_id: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node_errors = dict(node_errors or {})
        self.exception_type = exception_type
        self.node_id = node_id
        self.traceback = traceback


class ComfyHost:
    """ComfyUI from `comfyui`, its files under `base`, this repository its only custom node.

    `extra_args` go after main.py's own; `env` adds to the environment; `log` takes the host's output
    (default: comfyui.log under `base`); `pack` is another copy of the pack to load instead; `cpu=False`
    lets the host use its GPU. On Linux the host ends with the thread that entered this context manager, so
    that killed tests leave none behind.
    """

    def __init__(
        self,
        comfyui: Path,
        base: Path,
        *,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        pack: Path = REPOSITORY,
        cpu: bool = True,
    ) -> None:
        self.comfyui = Path(comfyui).resolve()
        self.base = Path(base).resolve()
        self.log = Path(log).resolve() if log else self.base / "comfyui.log"
        self.port = 0
        self.url = ""
        self.process: subprocess.Popen | None = None
        self._pack = Path(pack).resolve()
        self._arguments = [*(["--cpu"] if cpu else []), *extra_args]
        self._env = dict(env or {})
        self._events = _Events()

    def __enter__(self) -> "ComfyHost":
        """Start the host and wait until it answers. Raises HostError, also when it can't import the pack."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        prepare_base(self.base, self._pack)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, str(self.comfyui / "main.py"), "--base-directory", str(self.base)]
        command += ["--listen", "127.0.0.1", "--port", str(self.port), "--disable-api-nodes"]
        command += ["--database-url", "sqlite:///:memory:"]
        command += ["--disable-all-custom-nodes", "--whitelist-custom-nodes", PACK_NAME, *self._arguments]
        with self.log.open("wb") as output:
            self.process = self._start(command, output)
        try:
            self._wait_for_boot(self.process)
            self._events.connect(f"{self.url}/ws")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, prompt: dict, *, on_event: EventHandler | None = None, timeout: float = 600) -> dict:
        """Queue a prompt in API format and wait for it: see `queue` and `wait`."""
        return self.wait(self.queue(prompt), on_event=on_event, timeout=timeout)

    def queue(self, prompt: dict) -> str:
        """Queue a prompt in API format; returns its id. Raises PromptError when any part of it is refused."""
        prompt_id = str(uuid.uuid4())
        self._events.expect(prompt_id)
        request = {"prompt": prompt, "prompt_id": prompt_id, "client_id": self._events.client_id}
        answer = self._request("/prompt", request)
        # The host drops outputs that do not validate and runs the others; here that is a refusal too.
        if answer.get("node_errors") or answer.get("error"):
            self._request("/queue", {"delete": [prompt_id]})
            self.interrupt(prompt_id)
            raise _refusal(answer)
        return prompt_id

    def wait(self, prompt_id: str, *, on_event: EventHandler | None = None, timeout: float = 600) -> dict:
        """Follow a queued prompt to its end; returns its entry in the host's history.

        `on_event` gets each websocket message of the prompt, and previews as {"type": "preview", "bytes": n}.
        An interrupted prompt returns too: its `status` has `completed` false and an `execution_interrupted`
        message. Raises PromptError when a node fails, HostError when the host dies or `timeout` seconds pass.
        """
        deadline = time.monotonic() + timeout
        while True:
            event = self._events.next(prompt_id, deadline)
            if event is None:
                raise self._failure(f"the prompt did not end within {timeout:g} s")
            if event["type"] == "closed":
                raise self._failure("ComfyUI closed the connection while the prompt was under way")
            if on_event is not None:
                on_event(event)
            if event["type"] == "executing" and event["data"].get("node") is None:
                break
        entry = self._request(f"/history/{prompt_id}")[prompt_id]
        for kind, message in entry["status"]["messages"]:
            if kind == "execution_error":
                raise _node_failure(message)
        return entry

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Interrupt what runs, or only the given prompt."""
        self._request("/interrupt", {"prompt_id": prompt_id} if prompt_id else {})

    def free(self) -> None:
        """Ask the host to unload its models and free its memory, as the editor's Free button does."""
        self._request("/free", {"unload_models": True, "free_memory": True})

    @property
    def client_id(self) -> str:
        """By which the host knows this websocket."""
        return self._events.client_id

    def object_info(self) -> dict:
        """The host's description of every node it has."""
        return self._request("/object_info")

    def output_file(self, image: dict) -> Path:
        """The file behind an image entry of the history."""
        return self.base / image["type"] / image.get("subfolder", "") / image["filename"]

    def stop(self, timeout: float = 20) -> None:
        """End the host, by SIGTERM and after `timeout` seconds by SIGKILL. Does nothing when it has ended."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._events.close()

    def _start(self, command: list[str], output: IO[bytes]) -> subprocess.Popen:
        return subprocess.Popen(
            command,
            cwd=self.base,
            env={**environment(self.comfyui), **self._env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # The kernel ends ComfyUI when its parent is killed.
            preexec_fn=partial(_libc.prctl, PR_SET_PDEATHSIG, signal.SIGTERM) if _libc else None,
        )

    def _wait_for_boot(self, process: subprocess.Popen) -> None:
        deadline = time.monotonic() + BOOT_DEADLINE_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise self._failure("ComfyUI did not start")
            try:
                self._ask("/system_stats")
            except OSError:
                time.sleep(0.1)
                continue
            if "(IMPORT FAILED)" in self.log.read_text(errors="replace"):
                raise self._failure(f"ComfyUI could not import the pack at {self._pack}")
            return
        raise self._failure(f"ComfyUI did not answer within {BOOT_DEADLINE_S} s")

    def _request(self, path: str, body: dict | None = None) -> dict:
        """What `_ask` returns, or the body of a refusal (HTTP 400). Raises HostError for everything else."""
        try:
            return self._ask(path, body)
        except urllib.error.HTTPError as refusal:
            if refusal.code == 400:
                return json.loads(refusal.read())
            raise self._failure(f"ComfyUI answered {path} with HTTP {refusal.code}") from refusal
        except OSError as error:
            raise self._failure(f"ComfyUI does not answer {path}") from error

    def _ask(self, path: str, body: dict | None = None) -> dict:
        """GET, or POST where there is a body; returns the JSON answer, {} where there is none. Raises OSError."""
        request = urllib.request.Request(self.url + path)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with open_url(request, timeout=60) as response:
            return json.loads(response.read() or b"{}")

    def _failure(self, what: str) -> HostError:
        """A HostError that says whether the host still lives and how its log ends."""
        try:
            state = f"it exited with {self.process.wait(2)}" if self.process else "it was not started"
        except subprocess.TimeoutExpired:
            state = "it is still running"
        lines = self.log.read_text(errors="replace").splitlines()[-40:]
        return HostError("\n".join([f"{what}: {state}. The end of {self.log}:", *lines]))


def prepare_base(base: Path, pack: Path = REPOSITORY) -> None:
    """Make the base folder with the pack linked into it. Raises HostError where that can't be done."""
    link = base / "custom_nodes" / PACK_NAME
    link.parent.mkdir(parents=True, exist_ok=True)
    settings = base / "user" / "default" / "comfy.settings.json"
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(json.dumps({"Comfy.TutorialCompleted": True}))
    if link.is_symlink() and link.resolve() != pack:
        link.unlink()
    if link.is_symlink():
        return
    try:
        link.symlink_to(pack, target_is_directory=True)
    except FileExistsError:
        if link.resolve() != pack:
            raise HostError(f"{link} is in the way of the link to {pack}: move it away.") from None
    except OSError as error:
        raise HostError(
            f"ComfyUI gets this pack by a symbolic link, and {link} could not be made ({error.strerror}): "
            "use a file system that has links, and on Windows turn on developer mode."
        ) from error


def environment(comfyui: Path) -> dict[str, str]:
    """That of a host from this folder."""
    # Where worker ranks run on the CPU, threads that spin while they wait would take the cores from them.
    env = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONUNBUFFERED": "1"}
    if not comfyui.is_relative_to(REPOSITORY):
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # an existing ComfyUI is used as it is
    return env


class _Events:
    """The host's websocket, read by a thread so that nothing is missed between `queue` and `wait`.

    Messages without a prompt id (previews, a custom node's own) count as the running prompt's.
    """

    def __init__(self) -> None:
        self.client_id = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._waiting: dict[str, list[dict]] = {}
        self._running: str | None = None
        self._open = False
        self._failure: Exception | None = None
        self._stop: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None

    def connect(self, url: str) -> None:
        """Connect before anything is queued. Raises HostError."""
        target = f"{url}?clientId={self.client_id}"
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._read(target)), name="comfy-events", daemon=True
        )
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._failure, timeout=30)
            if not self._open:
                raise HostError(f"ComfyUI's websocket at {url} could not be opened: {self._failure or 'no answer'}.")

    def expect(self, prompt_id: str) -> None:
        """Keep the events of a prompt from now on."""
        with self._changed:
            self._waiting[prompt_id] = []

    def next(self, prompt_id: str, deadline: float) -> dict | None:
        """The next event of an expected prompt; None at the deadline, type "closed" once the host has gone."""
        with self._changed:
            queue = self._waiting[prompt_id]
            self._changed.wait_for(lambda: queue or not self._open, timeout=max(0.0, deadline - time.monotonic()))
            if queue:
                return queue.pop(0)
            return None if self._open else {"type": "closed"}

    def close(self) -> None:
        """Disconnect and end the thread."""
        if self._thread is not None and self._thread.is_alive():
            self._stop()
            self._thread.join(10)

    async def _read(self, url: str) -> None:
        try:
            async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as websocket:
                loop = asyncio.get_running_loop()
                self._stop = lambda: asyncio.run_coroutine_threadsafe(websocket.close(), loop)
                with self._changed:
                    self._open = True
                    self._changed.notify_all()
                async for message in websocket:
                    self._keep(message.type, message.data)
        except (aiohttp.ClientError, OSError) as error:
            self._failure = error
        finally:
            with self._changed:
                self._open = False
                self._changed.notify_all()

    def _keep(self, kind: aiohttp.WSMsgType, message: Any) -> None:
        if kind == aiohttp.WSMsgType.BINARY:
            preview = int.from_bytes(message[:4], "big") in PREVIEW_TYPES
            event = {"type": "preview" if preview else "binary", "bytes": len(message)}
        elif kind == aiohttp.WSMsgType.TEXT:
            event = json.loads(message)
        else:
            return
        with self._changed:
            content = event.get("data")
            prompt_id = content.get("prompt_id") if isinstance(content, dict) else None
            if event["type"] == "execution_start":
                self._running = prompt_id
            queue = self._waiting.get(prompt_id or self._running or "")
            if queue is not None:
                queue.append(event)
                self._changed.notify_all()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _refusal(answer: dict) -> PromptError:
    """The error for an answer of POST /prompt that carries `error` or `node_errors`."""
    node_errors, lines = {}, []
    for node_id, found in (answer.get("node_errors") or {}).items():
        messages = [": ".join(filter(None, (e["message"], e.get("details")))) for e in found["errors"]]
        node_errors[node_id] = messages
        lines += [f"node {node_id} ({found['class_type']}): {message}" for message in messages]
    error = answer.get("error") or {}
    general = error if isinstance(error, str) else ": ".join(filter(None, (error.get("message"), error.get("details"))))
    return PromptError("\n".join([*filter(None, [general]), *lines]), node_errors=node_errors)


def _node_failure(message: dict) -> PromptError:
    """The error for an `execution_error` message."""
    return PromptError(
        message["exception_message"].strip(),
        exception_type=message["exception_type"],
        node_id=message["node_id"],
        traceback="".join(message["traceback"]),
    )
