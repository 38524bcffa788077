"""
Real servers for the demo and the tests, started from binaries on this machine: no Docker, no root, no configuration.

`postgres.Postgres`, `valkey.Valkey` and `rabbitmq.RabbitMQ` are context managers over private servers on free loopback
ports. They can be stopped, killed, suspended and started again on the same data. Their processes and files are removed,
however the program that uses them ends. For demonstrations and tests only, not for production.
"""
