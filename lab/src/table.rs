//! Tables as text, Markdown and CSV, from one list of rows.

use serde::{Deserialize, Serialize};

/// Columns with their titles, and rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(titles: &[&str]) -> Table {
        Table { titles: titles.iter().map(|title| (*title).to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row. What is lacking is empty, what is too much is left out.
    pub fn add(&mut self, cells: Vec<String>) {
        let mut cells = cells;
        cells.resize(self.titles.len(), String::new());
        self.rows.push(cells);
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Without the columns that say nothing in any row.
    pub fn without_empty_columns(self) -> Table {
        let says = |column: &usize| self.rows.iter().any(|row| !row[*column].is_empty());
        let columns: Vec<usize> = (0..self.titles.len()).filter(says).collect();
        let of = |cells: &Vec<String>| columns.iter().map(|column| cells[*column].clone()).collect();
        Table { titles: of(&self.titles), rows: self.rows.iter().map(of).collect() }
    }

    /// Lines for a terminal, columns under each other, numbers to the right.
    pub fn lines(&self) -> Vec<String> {
        let widths: Vec<usize> = (0..self.titles.len())
            .map(|column| self.all().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let line = |row: &Vec<String>| {
            let cell = |(column, text): (usize, &String)| {
                let space = " ".repeat(widths[column] - text.chars().count());
                if self.is_number(column) { space + text } else { text.clone() + &space }
            };
            row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.all().map(line).collect()
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let escaped = |row: &Vec<String>| row.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>();
        let mut text = line(&escaped(&self.titles));
        let rules: Vec<String> = (0..self.titles.len())
            .map(|column| if self.is_number(column) { "--:" } else { "---" }.to_owned())
            .collect();
        text += &format!("|{}|\n", rules.join("|"));
        self.rows.iter().for_each(|row| text += &line(&escaped(row)));
        text
    }

    /// The table as CSV (RFC 4180).
    pub fn csv(&self) -> String {
        let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
        // Into memory, in rows that are all as long: nothing of it fails.
        let _ = self.all().try_for_each(|row| writer.write_record(row));
        String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
    }

    /// The titles.
    pub fn titles(&self) -> &[String] {
        &self.titles
    }

    /// The rows.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    fn all(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.titles).chain(&self.rows)
    }

    /// Whether a column holds numbers, with or without a unit; a dash is one that is lacking. Shapes and times of day are none.
    pub fn is_number(&self, column: usize) -> bool {
        let is_one = |text: &str| {
            let figure = text.trim_start_matches(['-', '+', '±']).split(' ').next().unwrap_or_default();
            figure.starts_with(|c: char| c.is_ascii_digit())
                && figure.chars().all(|c| c.is_ascii_digit() || ".e-–×/%".contains(c))
        };
        let texts =
            || self.rows.iter().map(|row| row[column].as_str()).filter(|text| !["", "–"].contains(text));
        texts().all(is_one) && texts().next().is_some()
    }
}

/// A number with as many digits as a reader needs.
pub fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 1000.0 => format!("{number:.0}"),
        n if n >= 100.0 => format!("{number:.1}"),
        n if n >= 1.0 => format!("{number:.2}"),
        0.0 => "0".to_owned(),
        n if n >= 0.01 => format!("{number:.3}"),
        _ => format!("{number:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_table_in_three_forms() {
        let mut table = Table::new(&["name", "µs"]);
        table.add(vec!["a,b".into(), "1.50".into()]);
        table.add(vec!["c|d".into(), "10.25".into()]);
        assert_eq!(table.lines(), ["name     µs", "a,b    1.50", "c|d   10.25"]);
        assert_eq!(table.markdown(), "| name | µs |\n|---|--:|\n| a,b | 1.50 |\n| c\\|d | 10.25 |\n");
        assert_eq!(table.csv(), "name,µs\r\n\"a,b\",1.50\r\nc|d,10.25\r\n");
    }

    #[test]
    fn shapes_and_times_of_day_are_no_numbers_and_empty_columns_go() {
        let mut table = Table::new(&["shape", "when", "µs", "spread", "range", "lacking", "reason"]);
        let cells = ["1,8,8,512,512,64", "2026-11-20T10:00:00Z", "1.5e-7", "1.2 %", "1.4–1.6", "–", ""];
        table.add(cells.map(str::to_owned).to_vec());
        let numbers: Vec<bool> = (0..7).map(|column| table.is_number(column)).collect();
        assert_eq!(numbers, [false, false, true, true, true, false, false]);
        let titles = ["shape", "when", "µs", "spread", "range", "lacking"].map(str::to_owned);
        assert_eq!(table.without_empty_columns().titles(), titles);
    }

    #[test]
    fn numbers_are_as_long_as_they_need_to_be() {
        assert_eq!(
            [12345.6, 123.45, 1.234, 0.0567, 0.0, 1.5e-5].map(short),
            ["12346", "123.5", "1.23", "0.057", "0", "1.50e-5"]
        );
    }
}
