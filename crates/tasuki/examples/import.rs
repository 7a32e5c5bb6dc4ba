//! A batch import: submits the rows of a file as tasks in one call and waits until all have ended. If the same file is
//! imported again, its rows are not processed a second time.
//!
//! Run it with `cargo run -p tasuki --example import`, optionally with a database URL as an argument.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasuki::{Client, Context, Error, JobDeclaration, TaskError, TaskSuccess};

/// One row of the file, and the arguments of its task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Product {
    number: u32,
    name: String,
    price: String,
}

/// Imports one row. An invalid price is a permanent error, because a retry cannot succeed.
async fn import(product: Product, context: Context) -> Result<TaskSuccess, TaskError> {
    let cents = match product.price.split_once('.') {
        Some((euros, cents)) => euros.parse::<u64>()? * 100 + cents.parse::<u64>()?,
        None => return Err(TaskError::fatal(format!("{:?} is not a price", product.price))),
    };
    context.log(format!("{} {} costs {cents} cents", product.number, product.name));
    Ok(TaskSuccess::with_result(&cents)?.rows_affected(1))
}

fn file() -> Vec<Product> {
    let row = |(number, name, price): (u32, &str, &str)| Product {
        number,
        name: name.to_owned(),
        price: price.to_owned(),
    };
    [(1, "tea", "3.20"), (2, "cup", "12.50"), (3, "pot", "ask us"), (4, "spoon", "0.99")]
        .map(row)
        .into()
}

/// Imports the file twice and returns a summary of the results.
pub(crate) async fn run(database: &str) -> Result<String, Box<dyn std::error::Error>> {
    let client = Client::connect(database).await?;
    let job = JobDeclaration::task("import").max_retries(2).timeout(Duration::from_secs(60));
    let node = client.node_builder("import")?.handler("import", import).job(job).start().await?;
    // The rows have idempotency keys, so the second import finds the existing runs and creates none.
    for time in ["first", "second"] {
        let tasks: Result<Vec<_>, Error> = file()
            .iter()
            .map(|row| {
                Ok(client
                    .task("import", row)?
                    .idempotency_key(format!("price list 7/{}", row.number)))
            })
            .collect();
        let created = client.submit_all(tasks?).await?;
        let new = created.iter().filter(|created| !created.existed).count();
        println!("the {time} time {new} rows were new");
    }
    let mut summary = String::new();
    for row in file() {
        let task =
            client.task("import", &row)?.idempotency_key(format!("price list 7/{}", row.number));
        let run = task.submit().await?.run;
        let ended = client.wait_until_ended(run, Duration::from_secs(30)).await?.info.run;
        let what = ended.result.or(ended.error_message).unwrap_or_default();
        summary.push_str(&format!("{}: {} {what}\n", row.name, ended.state));
    }
    node.stop().await;
    Ok(summary)
}

#[allow(dead_code, reason = "the tests call run")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = std::env::args().nth(1).unwrap_or_else(|| "sqlite:import.db".to_owned());
    print!("{}", run(&database).await?);
    Ok(())
}
