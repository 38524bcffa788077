# The queues and exchanges of consumers, for workers without the permission to configure (`outrider worker --no-declare`),
# and the permissions of their user. The same as a worker would declare: see consumer/topology.py and docs/consumer.md.

locals {
  # "1m30s" -> milliseconds. Each delay has exactly one spelling; var.consumers validates it.
  delays = toset(flatten([for consumer in var.consumers : consumer.retry_delays]))
  milliseconds = {
    for delay in local.delays : delay => (
      60000 * try(tonumber(regex("^([0-9]+)m(?:[^s]|$)", delay)[0]), 0) +
      1000 * try(tonumber(regex("(?:^|m)([0-9]+)s", delay)[0]), 0) +
      try(tonumber(regex("(?:^|[ms])([0-9]+)ms$", delay)[0]), 0)
    )
  }
  at_least_once = {
    "x-queue-type"           = "quorum"
    "x-dead-letter-strategy" = "at-least-once"
    "x-overflow"             = "reject-publish"
  }
  bindings = {
    for binding in flatten([
      for queue, consumer in var.consumers : [
        for key in consumer.routing_keys : { queue = queue, exchange = consumer.exchange, routing_key = key }
      ]
    ]) : "${binding.queue} ${binding.exchange} ${binding.routing_key}" => binding
  }
}

# -- dead letters, and the return from delays ---------------------------------------------------------------------------

resource "rabbitmq_exchange" "dead" {
  name  = "outrider.dead"
  vhost = var.vhost
  settings {
    type        = "direct"
    durable     = true
    auto_delete = false
  }
}

resource "rabbitmq_exchange" "unreturned" {
  name  = "outrider.unreturned"
  vhost = var.vhost
  settings {
    type        = "fanout"
    durable     = true
    auto_delete = false
  }
}

resource "rabbitmq_exchange" "return" {
  name  = "outrider.return"
  vhost = var.vhost
  settings {
    type        = "direct"
    durable     = true
    auto_delete = false
    arguments   = { "alternate-exchange" = rabbitmq_exchange.unreturned.name }
  }
}

resource "rabbitmq_queue" "unreturned" {
  name  = "outrider.unreturned"
  vhost = var.vhost
  settings {
    durable     = true
    auto_delete = false
    arguments_json = jsonencode({
      "x-queue-type"     = "quorum"
      "x-delivery-limit" = 1000000000
    })
  }
}

resource "rabbitmq_binding" "unreturned" {
  source           = rabbitmq_exchange.unreturned.name
  vhost            = var.vhost
  destination      = rabbitmq_queue.unreturned.name
  destination_type = "queue"
  routing_key      = ""
}

# -- delays, shared by all consumers ------------------------------------------------------------------------------------

resource "rabbitmq_exchange" "delay" {
  for_each = local.delays
  name     = "outrider.delay.${each.key}"
  vhost    = var.vhost
  settings {
    type        = "fanout"
    durable     = true
    auto_delete = false
  }
}

resource "rabbitmq_queue" "delay" {
  for_each = local.delays
  name     = "outrider.delay.${each.key}"
  vhost    = var.vhost
  settings {
    durable     = true
    auto_delete = false
    arguments_json = jsonencode(merge(local.at_least_once, {
      "x-message-ttl"          = local.milliseconds[each.key]
      "x-dead-letter-exchange" = rabbitmq_exchange.return.name
    }))
  }
}

resource "rabbitmq_binding" "delay" {
  for_each         = local.delays
  source           = rabbitmq_exchange.delay[each.key].name
  vhost            = var.vhost
  destination      = rabbitmq_queue.delay[each.key].name
  destination_type = "queue"
  routing_key      = ""
}

# -- each consumer ------------------------------------------------------------------------------------------------------

resource "rabbitmq_queue" "consumer" {
  for_each = var.consumers
  name     = each.key
  vhost    = var.vhost
  settings {
    durable     = true
    auto_delete = false
    arguments_json = jsonencode(merge(local.at_least_once, {
      "x-dead-letter-exchange"    = rabbitmq_exchange.dead.name
      "x-dead-letter-routing-key" = each.key
      "x-delivery-limit"          = 20
    }))
  }
}

resource "rabbitmq_queue" "dead" {
  for_each = var.consumers
  name     = "${each.key}.dlq"
  vhost    = var.vhost
  settings {
    durable     = true
    auto_delete = false
    arguments_json = jsonencode({
      "x-queue-type"     = "quorum"
      "x-delivery-limit" = 1000000000
    })
  }
}

resource "rabbitmq_binding" "events" {
  for_each         = local.bindings
  source           = each.value.exchange
  vhost            = var.vhost
  destination      = rabbitmq_queue.consumer[each.value.queue].name
  destination_type = "queue"
  routing_key      = each.value.routing_key
}

resource "rabbitmq_binding" "return" {
  for_each         = var.consumers
  source           = rabbitmq_exchange.return.name
  vhost            = var.vhost
  destination      = rabbitmq_queue.consumer[each.key].name
  destination_type = "queue"
  routing_key      = each.key
}

resource "rabbitmq_binding" "dead" {
  for_each         = var.consumers
  source           = rabbitmq_exchange.dead.name
  vhost            = var.vhost
  destination      = rabbitmq_queue.dead[each.key].name
  destination_type = "queue"
  routing_key      = each.key
}

# -- user of the workers ------------------------------------------------------------------------------------------------

resource "rabbitmq_permissions" "worker" {
  count = var.user == null ? 0 : 1
  user  = var.user
  vhost = var.vhost
  permissions {
    configure = "^$"
    write     = "^outrider\\.(dead|delay\\..*)$"
    read      = "^(${join("|", [for queue in keys(var.consumers) : replace(queue, ".", "\\.")])})$"
  }
}
