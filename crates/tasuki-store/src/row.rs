//! A row, whichever database it comes from.

use std::sync::Arc;

use serde_json::Value;
use sqlx::mysql::MySqlRow;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Column as _, ColumnIndex as _, Row as _, TypeInfo as _};
use uuid::Uuid;

use crate::Error;

/// A row of any of the three.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
    MySql(MySqlRow),
    /// From a JSON list. Bytes are written in hexadecimal.
    Listed(Listed),
}

/// A row that came with others as one JSON text, and what its columns are called.
pub(crate) struct Listed {
    names: Arc<[String]>,
    values: Vec<Value>,
}

impl Listed {
    fn get(&self, name: &str) -> Result<&Value, Error> {
        let at = self.names.iter().position(|one| one == name);
        at.and_then(|at| self.values.get(at))
            .ok_or_else(|| Error::broken(format!("{name} is in no list")))
    }
}

macro_rules! column {
    ($self:expr, $name:expr, $type:ty) => {
        match $self {
            Row::Sqlite(row) => row.try_get::<$type, _>($name),
            Row::Postgres(row) => row.try_get::<$type, _>($name),
            Row::MySql(row) => row.try_get::<$type, _>($name),
            Row::Listed(_) => return Err(Error::broken(format!("{} is in no list", $name))),
        }
    };
}

impl Row {
    /// The rows of a list of lists, with the names of its columns.
    pub(crate) fn listed(names: &str, list: &str) -> Result<Vec<Self>, Error> {
        let names: Arc<[String]> = names.split(' ').map(str::to_owned).collect();
        let rows: Vec<Vec<Value>> = serde_json::from_str(list)
            .map_err(|error| Error::broken(format!("a list: {error}")))?;
        let row = |values| Self::Listed(Listed { names: Arc::clone(&names), values });
        Ok(rows.into_iter().map(row).collect())
    }

    pub(crate) fn opt_int(&self, name: &str) -> Result<Option<i64>, Error> {
        if let Self::Listed(row) = self {
            return Ok(row.get(name)?.as_i64());
        }
        // PostgreSQL alone insists on the exact width.
        if let Self::Postgres(row) = self {
            let index = name.index(row)?;
            return Ok(match row.column(index).type_info().name() {
                "INT4" => row.try_get::<Option<i32>, _>(index)?.map(i64::from),
                "INT2" => row.try_get::<Option<i16>, _>(index)?.map(i64::from),
                _ => row.try_get(index)?,
            });
        }
        Ok(column!(self, name, Option<i64>)?)
    }

    pub(crate) fn int(&self, name: &str) -> Result<i64, Error> {
        self.opt_int(name)?.ok_or_else(|| Error::broken(format!("{name} is null")))
    }

    pub(crate) fn opt_text(&self, name: &str) -> Result<Option<String>, Error> {
        if let Self::Listed(row) = self {
            return Ok(row.get(name)?.as_str().map(str::to_owned));
        }
        // SQLite keeps what it is given: one row of bytes from some other program must not stand in the way of
        // all others.
        if let Self::Sqlite(row) = self {
            let bytes: Option<Vec<u8>> = row.try_get(name)?;
            let repaired = |bad: std::string::FromUtf8Error| {
                String::from_utf8_lossy(bad.as_bytes()).into_owned()
            };
            return Ok(bytes.map(|bytes| String::from_utf8(bytes).unwrap_or_else(repaired)));
        }
        Ok(column!(self, name, Option<String>)?)
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, Error> {
        self.opt_text(name)?.ok_or_else(|| Error::broken(format!("{name} is null")))
    }

    pub(crate) fn opt_uuid(&self, name: &str) -> Result<Option<Uuid>, Error> {
        if let Self::Listed(row) = self {
            let text = row.get(name)?.as_str().filter(|text| !text.is_empty());
            return Ok(text.and_then(|text| Uuid::try_parse(text).ok()));
        }
        Ok(column!(self, name, Option<Uuid>)?)
    }

    pub(crate) fn uuid(&self, name: &str) -> Result<Uuid, Error> {
        Ok(column!(self, name, Uuid)?)
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        Ok(column!(self, name, Vec<u8>)?)
    }
}
