vhost = "shop"

exchanges = {
  "shop"     = "topic"
  "shop.dlx" = "fanout"
}

queues = {
  "billing" = {
    bindings  = [{ exchange = "shop", routing_key = "order.*" }]
    arguments = { "x-queue-type" = "quorum", "x-delivery-limit" = "5", "x-dead-letter-exchange" = "shop.dlx" }
  }
  "billing.dead" = {
    bindings = [{ exchange = "shop.dlx", routing_key = "" }]
  }
}

publisher = {
  name     = "outrider"
  password = "change-me"
}

consumers = {
  "billing" = {
    password = "change-me-too"
    queues   = ["billing"]
  }
}
