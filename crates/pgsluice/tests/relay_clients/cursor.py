"""One task of psycopg2's replication cursor. Prints what comes as JSON lines.

The task is a JSON object in the first argument: dsn, do (create, follow or drop), slot, and for
follow also options, until and, with a new slot, create. `until` is a position; follow ends when
everything before it has come, and has confirmed it then. Without one it ends with a message. A
quiet one wants no warnings.
"""

import json
import select
import sys

import psycopg2
from psycopg2.extras import LogicalReplicationConnection


def lsn(text):
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def follow(cursor, task):
    until = lsn(task["until"]) if task["until"] else None
    cursor.start_replication(slot_name=task["slot"], options=task["options"], decode=False, status_interval=1)
    print(json.dumps({"streams": True, "notices": cursor.connection.notices}), flush=True)
    while True:
        message = cursor.read_message()
        if message is not None:
            line = {
                "data_start": message.data_start,
                "wal_end": message.wal_end,
                "size": message.data_size,
                "payload": message.payload.hex(),
            }
            print(json.dumps(line), flush=True)
            cursor.send_feedback(flush_lsn=message.wal_end)
            if until is None:
                return
        elif until is not None and cursor.wal_end >= until:
            break
        else:
            select.select([cursor], [], [], 1)
    cursor.send_feedback(write_lsn=until, flush_lsn=until, apply_lsn=until, force=True)


def main():
    task = json.loads(sys.argv[1])
    options = "-c client_min_messages=error" if task.get("quiet") else ""
    factory = LogicalReplicationConnection
    connection = psycopg2.connect(task["dsn"], connection_factory=factory, options=options)
    cursor = connection.cursor()
    if task["do"] == "drop":
        cursor.drop_replication_slot(task["slot"])
    if task["do"] == "create" or task.get("create"):
        cursor.create_replication_slot(task["slot"], output_plugin="pgoutput")
        slot = cursor.fetchone()
        print(json.dumps({"slot": slot[0], "plugin": slot[3], "has_snapshot": slot[2] is not None}), flush=True)
    if task["do"] == "follow":
        follow(cursor, task)
    connection.close()


main()
