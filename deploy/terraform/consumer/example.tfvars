vhost = "/"
user  = "billing-worker"
consumers = {
  "billing.on_order" = {
    routing_keys = ["order.*"]
    exchange     = "shop"
    retry_delays = ["1s", "10s", "1m", "5m"]
  }
}
