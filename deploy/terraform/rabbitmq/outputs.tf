output "vhost" {
  description = "What comes after the host in broker_url."
  value       = rabbitmq_vhost.outbox.name
}

output "publisher_write" {
  description = "The pattern of exchanges that the publisher may write to."
  value       = rabbitmq_permissions.publisher.permissions[0].write
}
