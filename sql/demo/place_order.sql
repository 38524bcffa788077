-- Insert an order of the demo's shop.
INSERT INTO shop_order (customer, total_cents) VALUES (%(customer)s, %(total_cents)s) RETURNING id;
