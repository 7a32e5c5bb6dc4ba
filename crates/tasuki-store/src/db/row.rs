//! A row, whichever database it comes from.

use std::fmt::Display;
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
    fn get(&self, at: usize) -> Result<&Value, Error> {
        self.values.get(at).ok_or_else(|| Error::broken(format!("a list has no column {at}")))
    }
}

/// Where a value stands in a row: by the name of its column, or by its number where many rows are read.
pub(crate) trait Place: Copy + Display {
    fn within(self, row: &Row) -> Result<usize, Error>;
}

impl Place for usize {
    fn within(self, _: &Row) -> Result<usize, Error> {
        Ok(self)
    }
}

impl Place for &str {
    fn within(self, row: &Row) -> Result<usize, Error> {
        Ok(match row {
            Row::Sqlite(row) => self.index(row)?,
            Row::Postgres(row) => self.index(row)?,
            Row::MySql(row) => self.index(row)?,
            Row::Listed(row) => row
                .names
                .iter()
                .position(|one| one == self)
                .ok_or_else(|| Error::broken(format!("{self} is in no list")))?,
        })
    }
}

macro_rules! column {
    ($self:expr, $place:expr, $type:ty) => {{
        let at = $place.within($self)?;
        match $self {
            Row::Sqlite(row) => row.try_get::<$type, _>(at),
            Row::Postgres(row) => row.try_get::<$type, _>(at),
            Row::MySql(row) => row.try_get::<$type, _>(at),
            Row::Listed(_) => return Err(Error::broken(format!("{} cannot be listed", $place))),
        }
    }};
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

    /// The numbers of columns, for rows that are like this one.
    pub(crate) fn places<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N], Error> {
        let mut places = [0; N];
        for (place, name) in places.iter_mut().zip(names) {
            *place = name.within(self)?;
        }
        Ok(places)
    }

    pub(crate) fn opt_int(&self, column: impl Place) -> Result<Option<i64>, Error> {
        if let Self::Listed(row) = self {
            return Ok(row.get(column.within(self)?)?.as_i64());
        }
        // PostgreSQL alone insists on the exact width.
        if let Self::Postgres(row) = self {
            let index = column.within(self)?;
            return Ok(match row.column(index).type_info().name() {
                "INT4" => row.try_get::<Option<i32>, _>(index)?.map(i64::from),
                "INT2" => row.try_get::<Option<i16>, _>(index)?.map(i64::from),
                _ => row.try_get(index)?,
            });
        }
        Ok(column!(self, column, Option<i64>)?)
    }

    pub(crate) fn int(&self, column: impl Place) -> Result<i64, Error> {
        self.opt_int(column)?.ok_or_else(|| Error::broken(format!("{column} is null")))
    }

    pub(crate) fn opt_text(&self, column: impl Place) -> Result<Option<String>, Error> {
        if let Self::Listed(row) = self {
            return Ok(row.get(column.within(self)?)?.as_str().map(str::to_owned));
        }
        // SQLite keeps what it is given: one row of bytes from some other program must not stand in the way of
        // all others.
        if let Self::Sqlite(row) = self {
            let bytes: Option<Vec<u8>> = row.try_get(column.within(self)?)?;
            let repaired = |bad: std::string::FromUtf8Error| {
                String::from_utf8_lossy(bad.as_bytes()).into_owned()
            };
            return Ok(bytes.map(|bytes| String::from_utf8(bytes).unwrap_or_else(repaired)));
        }
        Ok(column!(self, column, Option<String>)?)
    }

    pub(crate) fn text(&self, column: impl Place) -> Result<String, Error> {
        self.opt_text(column)?.ok_or_else(|| Error::broken(format!("{column} is null")))
    }

    pub(crate) fn opt_uuid(&self, column: impl Place) -> Result<Option<Uuid>, Error> {
        if let Self::Listed(row) = self {
            let text = row.get(column.within(self)?)?.as_str().filter(|text| !text.is_empty());
            return Ok(text.and_then(|text| Uuid::try_parse(text).ok()));
        }
        Ok(column!(self, column, Option<Uuid>)?)
    }

    pub(crate) fn uuid(&self, column: impl Place) -> Result<Uuid, Error> {
        Ok(column!(self, column, Uuid)?)
    }

    pub(crate) fn bytes(&self, column: impl Place) -> Result<Vec<u8>, Error> {
        Ok(column!(self, column, Vec<u8>)?)
    }
}
