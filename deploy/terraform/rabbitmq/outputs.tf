output "vhost" {
  description = "The vhost: the path of broker_url."
  value       = rabbitmq_vhost.outbox.name
}

output "publisher_write" {
  description = "The pattern of exchanges that the publisher may write to."
  value       = rabbitmq_permissions.publisher.permissions[0].write
}
