//! The charts that a method may put before its tables.

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub enum Chart {
    /// Ratios of two adapters.
    Ratios(Ratios),
    /// Parts of a whole for each row.
    Stack(Stack),
    /// A figure of every row under every load.
    Heat(Heat),
    /// Several rates over time, a picture for each row.
    Lines(Lines),
}

/// Ratios as a document draws them: a pair of adapters under several loads, with a bar for each figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratios {
    /// Its heading.
    pub title: String,
    /// The adapter whose figures are divided.
    pub of: &'static str,
    /// The adapter by whose figures they are divided.
    pub base: &'static str,
    /// The loads: label and name.
    pub loads: Vec<(String, String)>,
    /// The figures: title and name.
    pub figures: &'static [(&'static str, &'static str)],
    /// Whether the document has this chart, with bars and no numbers.
    pub is_documents: bool,
    /// A note for the reader, a sentence or two.
    pub about: &'static str,
}

/// A bar for each row, made of parts that are figures of one unit under one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// Its heading.
    pub title: String,
    /// Name of the load.
    pub load: String,
    /// The unit.
    pub unit: &'static str,
    /// The parts, the first at zero: title and name of the figure.
    pub parts: &'static [(&'static str, &'static str)],
    /// The measured whole, marked on the bar: title and name of the figure.
    pub whole: (&'static str, &'static str),
    /// A note for the reader, a sentence or two.
    pub about: &'static str,
}

/// A field of cells: a row for each subject, a column for each load, coloured by one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Heat {
    /// Its heading.
    pub title: String,
    /// Title of the rows, such as `From`.
    pub rows: &'static str,
    /// The columns: label and name of the load.
    pub loads: Vec<(String, String)>,
    /// Name of the figure.
    pub figure: &'static str,
    /// A note for the reader, a sentence or two.
    pub about: &'static str,
}

/// A picture for each row: several rates over the seconds of one run under one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// Its heading.
    pub title: String,
    /// Name of the load.
    pub load: String,
    /// The unit.
    pub unit: &'static str,
    /// The lines: title and name.
    pub lines: &'static [(&'static str, &'static str)],
    /// A note for the reader, a sentence or two.
    pub about: &'static str,
}
