//! SQLite files that may come from elsewhere.

use rusqlite::Connection;
use rusqlite::config::DbConfig;

/// Keeps the schema of a store, which may come from elsewhere, from running code: what we read has only tables and
/// indices.
///
/// # Errors
/// Returns an error when `SQLite` refuses a setting.
pub fn distrust_schema(connection: &Connection) -> rusqlite::Result<()> {
    let switches = [
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    ];
    for (switch, on) in switches {
        connection.set_db_config(switch, on)?;
    }
    Ok(())
}
