"""
Fault tests: all services run while processes, servers and connections fail; every committed message must be delivered.

    python -m tests.faults --duration 300 --seed 7        (or: make faults DURATION=300 SEED=7)

Producers commit messages, and record each in the table `committed_message` in the same transaction. Consumers record
what they receive. In between run a relay and its standby, two schedulers, PostgreSQL and RabbitMQ, each in processes of
their own. A schedule injects faults that a seed chooses. At the end the checker compares both sides and the state.

    run.py             the steps of one run             producer.py, consumer.py   the programs on both sides
    environment.py     servers, proxies, tables         processes.py               processes, restarted when they end
    fault_schedule.py  which fault is injected when     *_faults.py                the faults
    history.py         the record of a run              checker.py, report.py      what must hold of it, and its output

A seed repeats the choices (faults, targets, durations, transactions), not the interleaving of the processes.
"""
