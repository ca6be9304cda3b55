//! The machine and the run file of a report.

use super::facts::Facts;
use super::html::Page;
use crate::format::bytes;
use crate::protocol::probe::{Gpu, Host, Metric};

/// Writes the machine and the run file.
pub fn write(page: &mut Page<'_>, facts: &Facts) {
    page.markup("<section id=\"machine\">\n<h2>Machine</h2>\n<dl class=\"pairs\">\n");
    if let Some(device) = facts.status.as_ref().and_then(|status| status.device.as_deref()) {
        page.pair("trains on", device);
    }
    match &facts.reading {
        Some(reading) => {
            match &reading.gpu {
                Ok(gpu) => write_gpu(page, gpu),
                Err(why) => drop(page.pair("GPU", &why.to_string())),
            }
            write_host(page, &reading.host);
        }
        None => drop(page.pair("readings", "none were taken")),
    }
    page.markup("</dl>\n</section>\n<section id=\"config\">\n<h2>Config</h2>\n");
    match &facts.config {
        Some(config) => page.markup("<pre>").lines(config).markup("</pre>\n"),
        None => page.markup("<p class=\"empty\">run.yaml cannot be read.</p>\n"),
    };
    page.markup("</section>\n");
}

fn write_gpu(page: &mut Page<'_>, gpu: &Gpu) {
    page.pair("GPU", &gpu.name);
    write_metric(page, "VRAM", &gpu.vram_total_bytes, |total| bytes(*total));
    write_metric(page, "driver", &gpu.driver, Clone::clone);
    write_metric(page, "CUDA, at most", &gpu.more.cuda, Clone::clone);
    write_metric(page, "power limit", &gpu.power_limit_w, |watts| format!("{watts:.0} W"));
    write_metric(page, "temperature, last", &gpu.temperature_c, |degrees| format!("{degrees:.0} °C"));
}

fn write_host(page: &mut Page<'_>, host: &Host) {
    write_metric(page, "RAM", &host.ram_total_bytes, |total| bytes(*total));
    write_metric(page, "RAM in use, last", &host.ram_used_bytes, |used| bytes(*used));
    write_metric(page, "swap", &host.more.swap_total_bytes, |total| bytes(*total));
    write_metric(page, "disk free, last", &host.disk_free_bytes, |free| bytes(*free));
}

/// Writes a metric that this machine reports.
fn write_metric<T>(page: &mut Page<'_>, name: &'static str, metric: &Metric<T>, shown: impl Fn(&T) -> String) {
    if let Some(value) = metric.last() {
        page.pair(name, &shown(value));
    }
}
