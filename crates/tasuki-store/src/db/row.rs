//! A result row of any of the three databases.

use std::fmt::Display;
use std::sync::Arc;

use serde_json::Value;
use sqlx::mysql::MySqlRow;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Column as _, ColumnIndex as _, Row as _, TypeInfo as _};
use uuid::Uuid;

use crate::Error;

/// A result row of any driver.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
    MySql(MySqlRow),
    /// A row of a JSON list. Binary values are written in hexadecimal.
    Json(JsonRow),
}

/// A row that was returned with others as one JSON text.
pub(crate) struct JsonRow {
    column_names: Arc<[String]>,
    values: Vec<Value>,
}

impl JsonRow {
    fn get(&self, index: usize) -> Result<&Value, Error> {
        self.values
            .get(index)
            .ok_or_else(|| Error::broken(format!("a row of a JSON list has no column {index}")))
    }
}

/// A column of a row: its name, or its index, which is faster when many rows are read.
pub(crate) trait ColumnRef: Copy + Display {
    /// Returns the index of the column, from 0.
    fn index_in(self, row: &Row) -> Result<usize, Error>;
}

impl ColumnRef for usize {
    fn index_in(self, _: &Row) -> Result<usize, Error> {
        Ok(self)
    }
}

impl ColumnRef for &str {
    fn index_in(self, row: &Row) -> Result<usize, Error> {
        Ok(match row {
            Row::Sqlite(row) => self.index(row)?,
            Row::Postgres(row) => self.index(row)?,
            Row::MySql(row) => self.index(row)?,
            Row::Json(row) => row
                .column_names
                .iter()
                .position(|name| name == self)
                .ok_or_else(|| Error::broken(format!("a JSON list has no column {self}")))?,
        })
    }
}

/// Reads one column with the driver's own decoding. JSON rows are not supported.
macro_rules! column {
    ($self:expr, $column:expr, $type:ty) => {{
        let index = $column.index_in($self)?;
        match $self {
            Row::Sqlite(row) => row.try_get::<$type, _>(index),
            Row::Postgres(row) => row.try_get::<$type, _>(index),
            Row::MySql(row) => row.try_get::<$type, _>(index),
            Row::Json(_) => {
                return Err(Error::broken(format!("column {} cannot be in a JSON list", $column)));
            }
        }
    }};
}

impl Row {
    /// Parses a JSON list of lists into rows. `names` are the names of the columns, separated by spaces.
    pub(crate) fn from_json_list(names: &str, list: &str) -> Result<Vec<Self>, Error> {
        let column_names: Arc<[String]> = names.split(' ').map(str::to_owned).collect();
        let rows: Vec<Vec<Value>> = serde_json::from_str(list)
            .map_err(|error| Error::broken(format!("rows as a JSON list: {error}")))?;
        let row = |values| Self::Json(JsonRow { column_names: Arc::clone(&column_names), values });
        Ok(rows.into_iter().map(row).collect())
    }

    /// Returns the indexes of these columns. They hold for all rows of the same statement.
    pub(crate) fn column_indexes<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[usize; N], Error> {
        let mut indexes = [0; N];
        for (index, name) in indexes.iter_mut().zip(names) {
            *index = name.index_in(self)?;
        }
        Ok(indexes)
    }

    pub(crate) fn opt_int(&self, column: impl ColumnRef) -> Result<Option<i64>, Error> {
        if let Self::Json(row) = self {
            return Ok(row.get(column.index_in(self)?)?.as_i64());
        }
        // Only the PostgreSQL driver requires the exact integer width of the column.
        if let Self::Postgres(row) = self {
            let index = column.index_in(self)?;
            return Ok(match row.column(index).type_info().name() {
                "INT4" => row.try_get::<Option<i32>, _>(index)?.map(i64::from),
                "INT2" => row.try_get::<Option<i16>, _>(index)?.map(i64::from),
                _ => row.try_get(index)?,
            });
        }
        Ok(column!(self, column, Option<i64>)?)
    }

    pub(crate) fn int(&self, column: impl ColumnRef) -> Result<i64, Error> {
        self.opt_int(column)?.ok_or_else(|| Error::broken(format!("column {column} is null")))
    }

    pub(crate) fn opt_text(&self, column: impl ColumnRef) -> Result<Option<String>, Error> {
        if let Self::Json(row) = self {
            return Ok(row.get(column.index_in(self)?)?.as_str().map(str::to_owned));
        }
        // SQLite does not enforce column types. A row with invalid UTF-8 that another program wrote must not make the
        // whole query fail, so invalid bytes are replaced.
        if let Self::Sqlite(row) = self {
            let bytes: Option<Vec<u8>> = row.try_get(column.index_in(self)?)?;
            let repaired = |bad: std::string::FromUtf8Error| {
                String::from_utf8_lossy(bad.as_bytes()).into_owned()
            };
            return Ok(bytes.map(|bytes| String::from_utf8(bytes).unwrap_or_else(repaired)));
        }
        Ok(column!(self, column, Option<String>)?)
    }

    pub(crate) fn text(&self, column: impl ColumnRef) -> Result<String, Error> {
        self.opt_text(column)?.ok_or_else(|| Error::broken(format!("column {column} is null")))
    }

    pub(crate) fn opt_uuid(&self, column: impl ColumnRef) -> Result<Option<Uuid>, Error> {
        if let Self::Json(row) = self {
            let text = row.get(column.index_in(self)?)?.as_str().filter(|text| !text.is_empty());
            return Ok(text.and_then(|text| Uuid::try_parse(text).ok()));
        }
        Ok(column!(self, column, Option<Uuid>)?)
    }

    pub(crate) fn uuid(&self, column: impl ColumnRef) -> Result<Uuid, Error> {
        Ok(column!(self, column, Uuid)?)
    }

    pub(crate) fn bytes(&self, column: impl ColumnRef) -> Result<Vec<u8>, Error> {
        Ok(column!(self, column, Vec<u8>)?)
    }
}
