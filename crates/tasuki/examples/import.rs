//! A batch import: a file's rows are submitted as tasks in one call, each once however often the file comes,
//! and the program waits until all are in.
//!
//! `cargo run -p tasuki --example import`, or with a database URL behind it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasuki::{Client, Context, Done, Error, Job, TaskError};

/// One row of the file, and the arguments of its task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Product {
    number: u32,
    name: String,
    price: String,
}

/// What becomes of one row. A price that is none will not become one by trying again.
async fn import(product: Product, context: Context) -> Result<Done, TaskError> {
    let cents = match product.price.split_once('.') {
        Some((euros, cents)) => euros.parse::<u64>()? * 100 + cents.parse::<u64>()?,
        None => return Err(TaskError::fatal(format!("{:?} is no price", product.price))),
    };
    context.log(format!("{} {} costs {cents} cents", product.number, product.name));
    Ok(Done::with(&cents)?.rows_affected(1))
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

/// Imports the file, twice, and says what came of it.
pub(crate) async fn run(database: &str) -> Result<String, Box<dyn std::error::Error>> {
    let client = Client::connect(database).await?;
    let job = Job::task("import").max_retries(2).timeout(Duration::from_secs(60));
    let node = client.node("import")?.handler("import", import).job(job).start().await?;
    // The same file may come again: its rows have keys, so they are found and not made again.
    for time in ["first", "second"] {
        let tasks: Result<Vec<_>, Error> = file()
            .iter()
            .map(|row| Ok(client.task("import", row)?.key(format!("price list 7/{}", row.number))))
            .collect();
        let made = client.submit_all(tasks?).await?;
        let new = made.iter().filter(|one| !one.existed).count();
        println!("the {time} time {new} rows were new");
    }
    let mut told = String::new();
    for row in file() {
        let task = client.task("import", &row)?.key(format!("price list 7/{}", row.number));
        let run = task.submit().await?.run;
        let ended = client.wait(run, Duration::from_secs(30)).await?.now.run;
        let what = ended.result.or(ended.error_message).unwrap_or_default();
        told.push_str(&format!("{}: {} {what}\n", row.name, ended.state));
    }
    node.stop().await;
    Ok(told)
}

#[allow(dead_code, reason = "the tests call run")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = std::env::args().nth(1).unwrap_or_else(|| "sqlite:import.db".to_owned());
    print!("{}", run(&database).await?);
    Ok(())
}
