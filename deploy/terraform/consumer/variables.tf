variable "vhost" {
  description = "The vhost of the workers."
  type        = string
  default     = "/"
}

variable "user" {
  description = "The user of the workers, without the permission to configure; null: permissions are set elsewhere."
  type        = string
  default     = null
}

variable "consumers" {
  description = "The options of @consume, by queue. The exchange must exist."
  type = map(object({
    routing_keys = optional(list(string), [])
    exchange     = optional(string, "amq.topic")
    retry_delays = optional(list(string), ["1s", "10s", "1m", "5m"])
  }))

  validation {
    condition = alltrue([
      for delay in flatten([for consumer in var.consumers : consumer.retry_delays]) :
      delay == "0s" || delay != "" && can(regex("^([1-9][0-9]*m)?([1-5]?[0-9]s)?([1-9][0-9]{0,2}ms)?$", delay)) && !can(regex("(^|m)0", delay))
    ])
    error_message = "A delay is minutes, seconds and milliseconds such as 500ms, 10s, 1m30s or 90m, as in @consume."
  }
}
