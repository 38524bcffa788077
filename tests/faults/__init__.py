"""
The crash ledger: committed means delivered, counted from outside while everything is killed, cut off and restarted.

    python -m tests.faults --duration 300 --seed 7        (or: make faults DURATION=300 SEED=7)

Producers commit messages, and write each into a ledger table in the same transaction; consumers note what they receive.
In between run a relay and its standby, two schedulers, PostgreSQL and RabbitMQ, all as processes of their own, and a
nemesis that injects faults chosen by a seed. In the end `checker` compares the two sides, and the state that is left.

    run.py          the whole of a run            producer.py, consumer.py   the programs on both sides
    world.py        servers, proxies, tables      cast.py                    the processes, started again when they end
    nemesis.py      which fault, when             *_faults.py                what can be done to the world
    history.py      what happened                 checker.py                 what must hold of it; report.py shows both

A seed repeats the choices (faults, victims, durations, transactions), not the interleaving of the processes.
"""
