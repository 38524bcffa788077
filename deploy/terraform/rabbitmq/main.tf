# RabbitMQ for an outbox: exchanges, queues, a publisher without the permission to configure, consumers that may read
# only their own queues. Everything is declared here, so that services declare nothing.

resource "rabbitmq_vhost" "outbox" {
  name = var.vhost
}

resource "rabbitmq_exchange" "exchange" {
  for_each = var.exchanges

  name  = each.key
  vhost = rabbitmq_vhost.outbox.name

  settings {
    type        = each.value
    durable     = true
    auto_delete = false
  }
}

resource "rabbitmq_queue" "queue" {
  for_each = var.queues

  name  = each.key
  vhost = rabbitmq_vhost.outbox.name

  settings {
    durable     = true
    auto_delete = false
    # JSON, so that numbers stay numbers: RabbitMQ refuses "x-message-ttl" as text.
    arguments_json = jsonencode({ for name, value in each.value.arguments : name => try(tonumber(value), value) })
  }
}

locals {
  bindings = merge([
    for queue, settings in var.queues : {
      for binding in settings.bindings : "${binding.exchange}/${queue}/${binding.routing_key}" => {
        exchange    = binding.exchange
        queue       = queue
        routing_key = binding.routing_key
      }
    }
  ]...)

  # In permissions RabbitMQ calls the default exchange amq.default.
  writable = concat(keys(var.exchanges), var.publish_to_queues ? ["amq.default"] : [])
}

resource "rabbitmq_binding" "binding" {
  for_each = local.bindings

  vhost            = rabbitmq_vhost.outbox.name
  source           = rabbitmq_exchange.exchange[each.value.exchange].name
  destination      = rabbitmq_queue.queue[each.value.queue].name
  destination_type = "queue"
  routing_key      = each.value.routing_key
}

resource "rabbitmq_user" "publisher" {
  name     = var.publisher.name
  password = var.publisher.password
  tags     = []
}

resource "rabbitmq_permissions" "publisher" {
  user  = rabbitmq_user.publisher.name
  vhost = rabbitmq_vhost.outbox.name

  permissions {
    configure = var.publisher_configure
    write     = "^(${replace(join("|", local.writable), ".", "\\.")})$"
    read      = "^$"
  }
}

resource "rabbitmq_user" "consumer" {
  for_each = nonsensitive(toset(keys(var.consumers)))

  name     = each.key
  password = var.consumers[each.key].password
  tags     = []
}

resource "rabbitmq_permissions" "consumer" {
  for_each = nonsensitive(toset(keys(var.consumers)))

  user  = rabbitmq_user.consumer[each.key].name
  vhost = rabbitmq_vhost.outbox.name

  permissions {
    configure = "^$"
    write     = "^$"
    read      = "^(${replace(join("|", var.consumers[each.key].queues), ".", "\\.")})$"
  }
}
