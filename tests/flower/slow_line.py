"""A slow line: a port of loopback from which everything goes on to another address, later.

    python slow_line.py PORT HOST:PORT SECONDS BYTES_PER_SECOND

What is sent arrives that many seconds later, each way, and no faster than so many bytes a second.  The
kernel's own way of doing this (netem) is not part of every kernel.
"""

from __future__ import annotations

import asyncio
import sys


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float, rate: float
) -> None:
    """One way of one connection."""
    clock, under_way = asyncio.get_running_loop().time, asyncio.Queue[tuple[float, bytes]]()

    async def send() -> None:
        free = 0.0
        while True:
            came, part = await under_way.get()
            free = max(free, came) + len(part) / rate
            await asyncio.sleep(max(0.0, free + seconds - clock()))
            if not part:  # the end is late, too
                break
            writer.write(part)
            await writer.drain()
        writer.close()

    sending = asyncio.create_task(send())
    try:
        while part := await reader.read(4096):
            under_way.put_nowait((clock(), part))
    except OSError:
        pass
    under_way.put_nowait((clock(), b""))
    try:
        await sending
    except OSError:
        writer.close()


async def main(port: int, host: str, target: int, seconds: float, rate: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, back, seconds, rate), carry(there, writer, seconds, rate))

    async with await asyncio.start_server(connected, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    own, address, late, most = sys.argv[1:]
    name, _, number = address.rpartition(":")
    asyncio.run(main(int(own), name, int(number), float(late), float(most)))
