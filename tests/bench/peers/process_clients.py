"""Clients of a peer in a process each: started once, told by a line what to measure, answering with a line.

They are in a session of their own, so that Ctrl-C reaches only the bench, which ends them; one whose bench is gone
reads the end of its input and ends too.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from array import array
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

from bench.peers.peer import Client, ClientRate, Echoing, Kind, Operation, Peer, step_of, together
from bench.rates import Rate, rate_of
from xaqueue.errors import OperationalError


class ProcessClients:
    """So many processes with a connection each, for the time of the bench."""

    kind: Kind = "processes"

    def __init__(self, peer: Peer, most: int) -> None:
        """``most``: how many clients there are at the most."""
        self._peer = peer
        self._processes: list[subprocess.Popen[str]] = []
        command = [sys.executable, "-m", __name__, type(peer).__module__]
        try:
            for _ in range(most):
                self._processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
                    )
                )
            for process in self._processes:
                self._tell(process, peer.place)
            for process in self._processes:
                self._answer(process)
        except BaseException:
            self.close()
            raise

    def rate(self, operation: Operation, clients: int, messages: int, body: bytes, seconds: float) -> ClientRate:
        """Raises OperationalError when a process failed; it has said why on stderr."""
        asked = {"operation": operation, "messages": messages, "size_bytes": len(body), "seconds": seconds}
        for process in self._processes[:clients]:
            self._tell(process, asked)
        answers = [self._answer(process) for process in self._processes[:clients]]
        return together([_rate(answer) for answer in answers], sum(answer["round_trips"] for answer in answers))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()

    def _tell(self, process: subprocess.Popen[str], told: object) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its missing answer says so
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise OperationalError(f"a client process of {self._peer.name} ended with {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _rate(answer: dict[str, Any]) -> Rate:
    latencies = array("d", base64.b64decode(answer["latencies_s"]))
    seconds, cpu_seconds = answer["seconds"], answer["cpu_seconds"]
    return Rate(len(latencies), seconds, cpu_seconds, latencies)


def serve(client: Client, questions: IO[str], answers: IO[str]) -> None:
    """What a process does until its input ends."""
    _say(answers, {"pid": os.getpid()})
    for question in questions:
        asked = json.loads(question)
        step = step_of(client, asked["operation"], asked["messages"], os.urandom(asked["size_bytes"]))
        before = _round_trips(client)
        rate = rate_of([step], asked["seconds"])
        latencies = base64.b64encode(rate.latencies_s.tobytes()).decode("ascii")
        answer = {"seconds": rate.seconds, "cpu_seconds": rate.cpu_seconds, "latencies_s": latencies}
        _say(answers, {**answer, "round_trips": _round_trips(client) - before})
    client.close()


def _round_trips(client: Client) -> int:
    return client.round_trips if isinstance(client, Echoing) else 0


def _say(answers: IO[str], said: dict[str, Any]) -> None:
    answers.write(json.dumps(said) + "\n")
    answers.flush()


def main(name: str) -> None:
    module = import_module(name)
    place = json.loads(sys.stdin.readline())  # not a word of the command line: it may hold a password
    serve(module.connect(place), sys.stdin, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
