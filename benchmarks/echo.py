"""An answer that costs nothing, under the same HTTP server: what loopback, uvicorn and the benchmark's client take.

python benchmarks/echo.py PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

BODY = b'{"request_id":"00000000000000000000000000000000","arms":["pin0"],"probabilities":[0.5]}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]


async def echo(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


if __name__ == "__main__":
    uvicorn.run(
        echo,
        port=int(sys.argv[1]),
        log_level="warning",
        access_log=False,
        loop="uvloop",
        http="httptools",
        lifespan="off",
    )
