"""Drives QEMUs by their QMP sockets: migrate.py FOLDER BYTES URI URI. A running guest moves from FOLDER/first to
FOLDER/second, is stopped and moves on to FOLDER/third with all its memory of BYTES pinned; there it has to be the same."""

import filecmp
import json
import socket
import sys
import time

WATCHDOG = 60


def connect(path):
    started = time.monotonic()
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection
        except ConnectionRefusedError:
            # The name is there a moment before somebody listens.
            if time.monotonic() - started > WATCHDOG:
                raise
            time.sleep(0.05)


class Qemu:
    def __init__(self, folder, name):
        self.path = f"{folder}/{name}"
        connection = connect(self.path)
        connection.settimeout(WATCHDOG)
        self.stream = connection.makefile("rw")
        json.loads(self.stream.readline())
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        self.stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.stream.flush()
        while True:
            line = json.loads(self.stream.readline())
            if "return" in line:
                return line["return"]
            if "error" in line:
                sys.exit(f"{self.path}: {command}: {line}")

    def until(self, what, wanted):
        started = time.monotonic()
        while (found := self(what).get("status")) != wanted:
            if found == "failed" or time.monotonic() - started > WATCHDOG:
                sys.exit(f"{self.path}: {what} is {found}, not {wanted}")
            time.sleep(0.05)

    def memory(self, size):
        self("pmemsave", val=0, size=size, filename=self.path + ".memory")
        return self.path + ".memory"


def migrate(source, target, uri, pinned):
    for side in (source, target):
        caps = [{"capability": "rdma-pin-all", "state": pinned}]
        side("migrate-set-capabilities", capabilities=caps)
    source("migrate", uri=uri)
    source.until("query-migrate", "completed")
    ram = source("query-migrate")["ram"]
    print(f"migrated: {ram['normal']} pages, {ram['duplicate']} of zeroes, pinned: {pinned}")


folder, size, *uris = sys.argv[1:]
first, second, third = (Qemu(folder, name) for name in ("first", "second", "third"))
for uri, target in zip(uris, (second, third)):
    target("migrate-set-capabilities", capabilities=[{"capability": "rdma-pin-all", "state": target is third}])
    target("migrate-incoming", uri=uri)
first.until("query-status", "running")
migrate(first, second, uris[0], False)
second.until("query-status", "running")
print("right: it runs")
second("stop")
migrate(second, third, uris[1], True)
if not filecmp.cmp(second.memory(int(size)), third.memory(int(size)), shallow=False):
    sys.exit("the memory differs")
print("right: the same memory")
for qemu in (first, second, third):
    qemu("quit")
