module dcache

go 1.26

require (
	github.com/jmoiron/sqlx v1.4.0
	github.com/matryer/is v1.4.1
	github.com/mattn/go-sqlite3 v1.14.53
)
