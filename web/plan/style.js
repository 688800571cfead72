// The look of what a Parallel Plan node says. Colours are the theme's.

const ID = 'paralleldit-plan-style'

const CSS = `
.pdit-plan { color: var(--fg-color); font: 11px/1.35 Inter, Arial, sans-serif; overflow: hidden; min-height: 0; }
.pdit-content { display: flex; flex-direction: column; gap: 5px; padding: 1px; text-align: start; user-select: text; }
.pdit-title { font-weight: 600; overflow-wrap: anywhere; }
.pdit-remark { color: var(--descrip-text); }
.pdit-note {
  border-inline-start: 3px solid var(--warning-background, var(--p-primary-color)); padding-inline-start: 6px;
}
.pdit-note + .pdit-note { margin-block-start: -5px; }
.pdit-error {
  border: 1px solid var(--error-text); border-radius: 5px; padding: 5px 7px; overflow-wrap: anywhere;
  background: color-mix(in srgb, var(--error-text) 14%, transparent);
}
.pdit-mesh, .pdit-row { display: flex; flex-wrap: wrap; gap: 4px; }
.pdit-group, .pdit-stage { flex: 1 1 auto; min-inline-size: 0; }
.pdit-boxed { border: 1px solid var(--border-color); border-radius: 5px; padding: 2px 4px 4px; }
.pdit-caption { color: var(--descrip-text); font-size: 10px; white-space: nowrap; }
.pdit-cell {
  flex: 1 1 34px; max-inline-size: 132px; box-sizing: border-box; padding: 2px 4px 4px; border-radius: 4px;
  background: var(--comfy-input-bg); display: flex; flex-direction: column; gap: 2px;
}
.pdit-rank { font-size: 10px; font-variant-numeric: tabular-nums; line-height: 1.2; }
.pdit-bar { display: flex; gap: 1px; block-size: 5px; border-radius: 2px; overflow: hidden; }
.pdit-piece { flex: 1; background: color-mix(in srgb, var(--fg-color) 14%, transparent); }
.pdit-fill { display: block; block-size: 100%; background: var(--pdit-colour); }
.pdit-tokens { --pdit-colour: var(--p-primary-color); }
.pdit-heads { --pdit-colour: color-mix(in srgb, var(--fg-color) 62%, transparent); }
.pdit-weights { --pdit-colour: var(--warning-background, var(--descrip-text)); }
.pdit-legend { display: flex; gap: 10px; color: var(--descrip-text); font-size: 10px; }
.pdit-key .pdit-fill {
  display: inline-block; inline-size: 8px; block-size: 5px; border-radius: 2px; margin: 0 4px 1px 0;
  vertical-align: middle;
}
.pdit-compact .pdit-stage > .pdit-row { display: grid; grid-template-columns: repeat(auto-fill, minmax(20px, 1fr)); }
.pdit-compact .pdit-group { flex: 1 1 110px; }
.pdit-compact .pdit-cell { padding: 1px 2px 2px; gap: 1px; }
.pdit-compact .pdit-rank { font-size: 8px; text-align: center; }
.pdit-compact .pdit-bar { block-size: 3px; }
.pdit-compact, .pdit-compact .pdit-row { gap: 2px; }
.lg-node:has(.pdit-error) [data-testid='node-inner-wrapper'] { box-shadow: 0 0 0 3px var(--error-text); }
[data-pdit-error] { outline: 1px solid var(--error-text); outline-offset: -1px; border-radius: 5px; }
`

/** Adds the style sheet to the page, once. */
export function addStyle() {
  if (document.getElementById(ID)) return
  const style = document.createElement('style')
  style.id = ID
  style.textContent = CSS
  document.head.append(style)
}
