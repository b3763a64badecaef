"""The part of curl that the documentation uses, for machines without it: ``python curl.py -i -u name:word URL ...``."""

from __future__ import annotations

import argparse
import base64
import http.client
import sys
from pathlib import Path
from urllib.parse import urlsplit


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-i", "--include", action="store_true")
    parser.add_argument("-s", "--silent", action="store_true")
    parser.add_argument("-u", "--user")
    parser.add_argument("-X", "--request")
    parser.add_argument("-H", "--header", action="append", default=[])
    parser.add_argument("-d", "--data")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("url")
    given = parser.parse_args(arguments)
    url = urlsplit(given.url)
    headers = dict(header.split(": ", 1) for header in given.header)
    if given.user:
        headers["Authorization"] = f"Basic {base64.b64encode(given.user.encode()).decode()}"
    method = given.request or ("GET" if given.data is None else "POST")
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    connection.request(method, url.path, given.data and given.data.encode(), headers)
    response = connection.getresponse()
    lines = [
        f"HTTP/1.1 {response.status} {response.reason}",
        *(f"{name}: {value}" for name, value in response.getheaders()),
    ]
    head = "".join(f"{line}\r\n" for line in (*lines, "")).encode() if given.include else b""
    answer = head + response.read()
    if given.output:
        given.output.write_bytes(answer)
    else:
        sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
