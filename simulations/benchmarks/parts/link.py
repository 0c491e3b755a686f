"""Hosts as network namespaces, connected by slow lines (root, Linux).

A line is two TUN devices, one per namespace, and a thread that forwards packets between them with a
rate, a delay and losses, as ``tc netem`` does on kernels that include it.

Example:
    with hosts(["server", "site0"]) as names, Line("server", "site0", ...) as line: ...
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1500
_QUEUE = 200  # packets that wait for the line; more are dropped


@contextmanager
def hosts(names: Sequence[str]) -> Iterator[None]:
    """Create network namespaces with a loopback device; delete them afterwards.

    Raises:
        subprocess.CalledProcessError: not root, or a namespace of this name is there.
    """
    with ExitStack() as made:  # deletes each even if another fails
        for name in names:
            ip("netns", "add", name)
            made.callback(ip, "netns", "delete", name)
            ip("-n", name, "link", "set", "lo", "up")
        yield


def inside(host: str) -> list[str]:
    """Return the prefix of a command that runs at a host."""
    return ["ip", "netns", "exec", host]


def ip(*arguments: str) -> None:
    """Run iproute2's command."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Line:
    """A line between two hosts, open while the context is.

    Attributes:
        ends: names of the two hosts.
        addresses: their IPv4 addresses on this line.
        rate: bits a second, each way.
        delay: seconds until a packet arrives, each way.
        loss: share of lost packets, each way.
        seed: decides which.
    """

    ends: tuple[str, str]
    addresses: tuple[str, str]
    rate: float
    delay: float
    loss: float
    seed: int = 0
    devices: tuple[str, str] = ("", "")
    _handles: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()
        return self

    def _open(self) -> None:
        named = []
        for end, host in enumerate(self.ends):
            # A host may have several lines; names of devices have 15 characters at most.
            device = f"fp{zlib.crc32(f'{self.ends}{end}'.encode()):08x}"
            handle = _tun(device)
            self._handles.append(handle)
            ip("link", "set", device, "netns", host)
            local, other = self.addresses[end], self.addresses[1 - end]
            ip("-n", host, "address", "add", f"{local}/32", "peer", f"{other}/32", "dev", device)
            ip("-n", host, "link", "set", device, "mtu", str(_MTU), "up")
            named.append(device)
        self.devices = (named[0], named[1])

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._close()

    def _close(self) -> None:
        while self._handles:
            os.close(self._handles.pop())

    def wire(self) -> dict[str, int]:
        """Return the bytes of IP packets so far, by the counters of the second host's device."""
        host, device = self.ends[1], self.devices[1]
        counts = {}
        for way, name in (("down", "rx_bytes"), ("up", "tx_bytes")):
            path = f"/sys/class/net/{device}/statistics/{name}"
            read = subprocess.run([*inside(host), "cat", path], check=True, capture_output=True)
            counts[way] = int(read.stdout)
        return counts

    def _carry(self) -> None:
        draw = random.Random(self.seed)  # packet losses, independent of the experiment's seed
        free = [0.0, 0.0]  # when the line of each direction can take the next packet
        waiting: list[tuple[float, int, int, bytes]] = []  # (when, order, to, packet)
        count = 0
        while not self._stop.is_set():
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, to, packet = heapq.heappop(waiting)
                with suppress(OSError):  # the device may be deleted already
                    os.write(self._handles[to], packet)
            pause = min(0.05, max(0.0, waiting[0][0] - now)) if waiting else 0.05
            for handle in select.select(self._handles, [], [], pause)[0]:
                packet, end = os.read(handle, 65536), self._handles.index(handle)
                if draw.random() < self.loss or len(waiting) > _QUEUE:
                    continue
                free[end] = max(free[end], time.monotonic()) + 8 * len(packet) / self.rate
                count += 1
                heapq.heappush(waiting, (free[end] + self.delay, count, 1 - end, packet))


def _tun(name: str) -> int:
    """Return a handle of a new TUN device."""
    handle = os.open("/dev/net/tun", os.O_RDWR)
    request = struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI)
    try:
        fcntl.ioctl(handle, _TUNSETIFF, request)
    except OSError:
        os.close(handle)
        raise
    return handle
