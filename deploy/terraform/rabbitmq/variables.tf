variable "vhost" {
  description = "The virtual host of the outbox; created here."
  type        = string
}

variable "exchanges" {
  description = "Durable exchanges that messages are published to: name = type (topic, direct, fanout, headers)."
  type        = map(string)

  validation {
    condition     = alltrue([for name in keys(var.exchanges) : can(regex("^[A-Za-z0-9_:-][A-Za-z0-9_.:-]*$", name))])
    error_message = "Exchange names may contain only letters, digits and _ . : - because they become part of a pattern."
  }
}

variable "publish_to_queues" {
  description = "Whether the publisher may use the default exchange, which routes to any queue by its name (Celery does)."
  type        = bool
  default     = false
}

variable "publisher" {
  description = "The user that relay and scheduler log in as."
  type = object({
    name     = string
    password = string
  })
  sensitive = true
}

variable "publisher_configure" {
  description = <<-EOT
    What the publisher may declare, as a pattern; by default nothing. Celery's messages declare their queue before they
    are sent; allow those queues by name ("^(celery|mail)$"), or such messages are refused.
  EOT
  type        = string
  default     = "^$"
}

variable "consumers" {
  description = "Users that may read only their own queues: name = { password, queues }."
  type = map(object({
    password = string
    queues   = list(string)
  }))
  default   = {}
  sensitive = true
}

variable "queues" {
  description = <<-EOT
    Durable queues: name = { bindings, arguments }. A binding is { exchange, routing_key }. Arguments control
    refused and waiting messages: x-dead-letter-exchange, x-message-ttl, x-delivery-limit, ...
  EOT
  type = map(object({
    bindings  = optional(list(object({ exchange = string, routing_key = string })), [])
    arguments = optional(map(string), { "x-queue-type" = "quorum" })
  }))
  default = {}
}
