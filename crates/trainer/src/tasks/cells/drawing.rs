//! Cells as text, for the samples of an evaluation, and as an SVG picture, for an export.

use super::genotype::{Edge, Genotype, Nodes, derive_nodes, entropy, strongest};

/// The longest bar, in characters.
const BAR: f64 = 20.0;
/// Distance of nodes, their radius, and the room above and below them, in pixels.
const STEP: usize = 150;
const RADIUS: usize = 16;
const LIFT: usize = 34;

/// Describes a searched cell: for each edge its strongest operation, and whether the genotype keeps it.
#[must_use]
pub fn describe_cell(strengths: &[Vec<f64>]) -> String {
    let mut text = format!("entropy {:.3}\n", entropy(strengths));
    let mut rest = strengths;
    for (node, kept) in derive_nodes(strengths).iter().enumerate() {
        let (edges, later) = rest.split_at(node + 2);
        rest = later;
        text.extend(["\n", &name_of(node + 2, 0), "\n"]);
        for (from, row) in edges.iter().enumerate() {
            text += &describe_edge(from, row, kept.iter().find(|edge| edge.from == from));
        }
    }
    text
}

fn describe_edge(from: usize, row: &[f64], kept: Option<&Edge>) -> String {
    let (strength, best) = strongest(from, row);
    let mark = if kept.is_some() { '●' } else { ' ' };
    let bar = "█".repeat((strength * BAR).round() as usize);
    format!("{mark} {:<8} {:<13} {strength:.2} {bar}\n", name_of(from, 0), best.operation.name())
}

/// Returns the name of a state of a cell with this many nodes: input, node or, behind them, the output.
fn name_of(state: usize, nodes: usize) -> String {
    match state {
        0 | 1 => format!("input {state}"),
        _ if nodes > 0 && state == nodes + 2 => "output".to_owned(),
        _ => format!("node {}", state - 2),
    }
}

/// Draws both cells of a genotype as SVG. It contains nothing but the genotype, so it needs no escaping.
#[must_use]
pub fn draw_genotype(genotype: &Genotype) -> String {
    let widest = genotype.node_counts().into_iter().max().unwrap_or(1) + 3;
    let (width, heights) = (widest * STEP, [&genotype.normal, &genotype.reduce].map(cell_height));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {}\" font-family=\"sans-serif\" \
         font-size=\"12\" text-anchor=\"middle\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        heights.iter().sum::<usize>()
    );
    draw_cell(&mut svg, "normal cell", &genotype.normal, 0);
    draw_cell(&mut svg, "reduction cell", &genotype.reduce, heights[0]);
    svg + "</svg>\n"
}

/// Returns the height of a cell's picture: room for its longest edges on both sides of its nodes.
fn cell_height(nodes: &Nodes) -> usize {
    2 * (nodes.len() + 2) * LIFT + 2 * RADIUS
}

fn draw_cell(svg: &mut String, title: &str, nodes: &Nodes, top: usize) {
    let middle = top + cell_height(nodes) / 2;
    let place = |state: usize| state * STEP + STEP / 2;
    let mut add = |text: std::fmt::Arguments<'_>| *svg += &text.to_string();
    add(format_args!(
        "<text x=\"12\" y=\"{}\" text-anchor=\"start\" font-size=\"16\" font-weight=\"bold\">{title}</text>\n",
        top + 24
    ));
    for (node, edges) in nodes.iter().enumerate() {
        for (number, edge) in edges.iter().enumerate() {
            let (start, end) = (place(edge.from), place(node + 2));
            // The first edge of a node runs above, the second below; longer ones farther from the middle.
            let lift = ((node + 2 - edge.from) * LIFT) as i64;
            let (lift, below_line) = if number % 2 == 0 { (-lift, -5) } else { (lift, 15) };
            // A quadratic curve reaches half the height of its control point, which may lie above the picture.
            let control = middle as i64 + 2 * lift;
            let label = middle as i64 + lift + below_line;
            add(format_args!(
                "<path d=\"M{start} {middle} Q{} {control} {end} {middle}\" fill=\"none\" stroke=\"#4477aa\" \
                 stroke-width=\"2\"/>\n<text x=\"{}\" y=\"{label}\" fill=\"#224466\">{}</text>\n",
                usize::midpoint(start, end),
                usize::midpoint(start, end),
                edge.operation.name()
            ));
        }
        let (from, to) = (place(node + 2), place(nodes.len() + 2));
        add(format_args!(
            "<path d=\"M{from} {middle} L{to} {middle}\" stroke=\"#bbbbbb\" stroke-dasharray=\"4 4\"/>\n"
        ));
    }
    for state in 0..nodes.len() + 3 {
        let (x, name) = (place(state), name_of(state, nodes.len()));
        let fill = if state < 2 || state == nodes.len() + 2 { "#ddddcc" } else { "#ccddee" };
        add(format_args!(
            "<circle cx=\"{x}\" cy=\"{middle}\" r=\"{RADIUS}\" fill=\"{fill}\" stroke=\"#333333\"/>\n\
             <text x=\"{x}\" y=\"{}\">{name}</text>\n",
            middle + 4
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::{describe_cell, draw_genotype};
    use crate::tasks::cells::genotype::Genotype;

    /// Returns the strengths of a cell with two nodes: operation n + 1 is strong on edge n.
    fn strengths() -> Vec<Vec<f64>> {
        let row =
            |edge: usize| (0..7).map(move |column| if column == edge + 1 { 0.4 + 0.1 * edge as f64 } else { 0.05 });
        (0..5).map(|edge| row(edge).collect()).collect()
    }

    #[test]
    fn the_text_marks_the_edges_that_the_genotype_keeps() {
        insta::assert_snapshot!(describe_cell(&strengths()));
    }

    #[test]
    fn the_picture_shows_every_edge_of_both_cells() {
        let genotype = Genotype::derive(&strengths(), &strengths());
        let svg = draw_genotype(&genotype);
        for operation in ["max_pool_3x3", "avg_pool_3x3", "sep_conv_3x3", "sep_conv_5x5"] {
            assert_eq!(svg.matches(operation).count(), 2, "{operation}: {svg}");
        }
        let tree = resvg::usvg::Tree::from_str(&svg, &resvg::usvg::Options::default()).unwrap();
        assert!(tree.size().width() > 600.0 && tree.root().has_children());
    }
}
