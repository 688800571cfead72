// Draws an answer about a plan into an element: the mesh, what is said of it, or the error.

import { element } from '../elements.mjs'
import { either, brief as inBrief, t } from '../text.mjs'
import { cardWords, memoryWords, remedyWords } from './memory.mjs'
import {
  COMPACT_ABOVE,
  captionOf,
  cellWords,
  columnsOf,
  deviceLabel,
  meshGroups,
  meshWords,
  remarkWords,
  stageCaption
} from './mesh.mjs'
import { predictedWords, unpredictedWords } from './predicted.mjs'

const MAX_PATCHES_DRAWN = 16

/**
 * Replaces what the element shows. answer: the server's, or null where nothing was asked. open: names of values that only
 * a run can tell. parts: `whole`, or one of those for little room.
 */
export function draw(target, answer, open, parts) {
  const isOpen = target.querySelector('details')?.open
  if (open.length) target.replaceChildren(line('paralleldit-plan-remark', t('plan.open', { names: open.join(', ') })))
  else if (!answer) target.replaceChildren()
  else if (answer.error) target.replaceChildren(errorBox(inBrief(answer.error)))
  else target.replaceChildren(...parts(answer))
  if (isOpen) target.querySelector('details')?.setAttribute('open', '')
}

/** Says, without alarm, that there is no answer. */
export function drawSilence(target, reason) {
  target.replaceChildren(line('paralleldit-plan-remark', t('plan.unanswered', { reason })))
}

/** Of a plan node: how its plan falls on the ranks, too. */
export function* whole(answer) {
  const predicted = predictedWords(answer, t)
  if (answer.plan) yield line('paralleldit-plan-title', titleOf(answer))
  if (answer.ranks.length) yield* mesh(answer)
  yield* figures(answer, predicted)
  yield* best(predicted)
  yield* notes(answer)
  yield* remarks(answer)
  yield* unknown(answer)
}

/** Of a loader that has no plan: what auto does with it. */
export const brief = (answer) =>
  folded(answer, answer.plan ? t('plan.auto', { plan: titleOf(answer) }) : t('plan.auto_open'))

/** Of a loader that has one. */
export const planned = (answer) => folded(answer, answer.plan ? titleOf(answer) : '')

/** The figures, and folded why they are so. */
function* folded(answer, title) {
  const predicted = predictedWords(answer, t)
  if (title) yield line('paralleldit-plan-title', title)
  yield* figures(answer, predicted)
  yield* notes(answer)
  const reasons = [...best(predicted), ...remarks(answer)]
  if (!answer.plan) yield* reasons
  else if (reasons.length) {
    yield element('details', { class: 'paralleldit-plan-why' }, element('summary', {}, t('plan.why')), ...reasons)
  }
  yield* unknown(answer)
}

function titleOf(answer) {
  const count = t(answer.world === 1 ? 'plan.one_rank' : 'plan.ranks', { count: answer.world })
  return answer.world === 1 ? count : `${count} · ${answer.plan}`
}

/** What the ranks need and have, what would fit where they lack, and how long a step takes. */
function* figures(answer, predicted) {
  for (const words of memoryWords(answer, meshGroups(answer), t)) yield line('paralleldit-plan-memory', words)
  for (const { text, lacks } of cardWords(answer, t)) {
    yield line(`paralleldit-plan-card${lacks ? ' paralleldit-plan-lacks' : ''}`, text)
  }
  const remedies = remedyWords(answer, either, t)
  if (remedies) yield line('paralleldit-plan-note', remedies)
  const step = predicted?.step ?? unpredictedWords(answer, t)
  if (step) yield line('paralleldit-plan-step', step)
  if (predicted?.alone) yield line('paralleldit-plan-note', predicted.alone)
}

function* notes(answer) {
  for (const remark of answer.note) yield line('paralleldit-plan-note', remarkWords(remark, t))
}

function* remarks(answer) {
  for (const remark of answer.remarks) yield line('paralleldit-plan-remark', remarkWords(remark, t))
}

function* unknown(answer) {
  for (const words of answer.unknown) yield line('paralleldit-plan-remark', inBrief(words))
}

function* best(words) {
  if (!words) return
  if (words.own) yield line('paralleldit-plan-memory', words.own)
  yield line('paralleldit-plan-memory', words.title)
  const rows = words.best.map((each, place) => {
    const row = element('li', {}, each)
    if (place === words.chosen) row.setAttribute('aria-current', 'true')
    return row
  })
  const list = element('ol', { class: 'paralleldit-plan-predicted' }, ...rows)
  list.dataset.testid = 'paralleldit-plan-predicted'
  yield list
}

/** A list of ranks, which say what they hold; of more than anyone reads, a picture. */
function* mesh(answer) {
  const groups = meshGroups(answer)
  const isCompact = answer.ranks.length > COMPACT_ABOVE
  const [first] = groups[0].stages
  const each = first.cells.length
  const parts = groups.map((group) => {
    const stages = group.stages.map((part) => stage(part, group, answer.device, isCompact))
    return box(
      'paralleldit-plan-group',
      captionOf(group, t),
      stages,
      isCompact ? 2 : sideBySide(stages.length, each, 2)
    )
  })
  const columns = isCompact ? 2 : sideBySide(groups.length, groups[0].stages.length * each)
  const drawn = grid(`paralleldit-plan-mesh${isCompact ? ' paralleldit-plan-compact' : ''}`, parts, columns)
  drawn.setAttribute('role', isCompact ? 'img' : 'list')
  drawn.setAttribute('aria-label', meshWords(groups, answer.world, t))
  yield drawn
  const [cell] = first.cells
  const kinds = ['tokens', cell.heads && 'heads', cell.weights && 'weights'].filter(Boolean)
  if (answer.ranks.length > 1 && (kinds.length > 1 || cell.tokens[0][1] < 1)) yield legend(kinds)
}

/** In how many columns to draw so many boxes of so many ranks. */
function sideBySide(boxes, ranks, most) {
  if (ranks > 2) return 1
  return columnsOf(boxes, ranks > 1 ? 2 : most)
}

function stage(part, group, device, isCompact) {
  const cells = part.cells.map((cell) => {
    const words = cellWords(cell, group, part, device, t)
    const tile = element('div', { class: 'paralleldit-plan-cell', title: words })
    tile.append(
      isCompact ? element('span', { class: 'paralleldit-plan-rank' }, String(cell.rank)) : label(cell, device)
    )
    tile.append(bar('tokens', cell.tokens))
    if (cell.heads) tile.append(bar('heads', [cell.heads]))
    if (cell.weights) tile.append(bar('weights', [cell.weights]))
    if (!isCompact) {
      tile.setAttribute('role', 'listitem')
      tile.setAttribute('aria-label', words)
    }
    return tile
  })
  return box('paralleldit-plan-stage', stageCaption(part, t), cells, isCompact ? 0 : columnsOf(cells.length))
}

/** "rank 0 · GPU 0", on two lines where the tile is narrow. */
function label(cell, device) {
  const made = element('div', { class: 'paralleldit-plan-rank', 'aria-hidden': 'true' })
  made.append(element('span', {}, t('plan.rank_label', { rank: cell.rank })))
  const where = deviceLabel(cell, device, t)
  if (where) made.append(element('i', {}, ' · '), element('span', {}, where))
  return made
}

/** A bar of a whole, of which these [start, stop] are filled; with several, the whole falls into so many patches. */
function bar(kind, spans) {
  const patches = spans.length <= MAX_PATCHES_DRAWN ? spans : spans.slice(0, MAX_PATCHES_DRAWN)
  const pieces = patches.map(([start, stop], patch) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' })
    fill.style.marginInlineStart = `${(start * spans.length - patch) * 100}%`
    fill.style.inlineSize = `${(stop - start) * spans.length * 100}%`
    return element('span', { class: 'paralleldit-plan-piece' }, fill)
  })
  return element('div', { class: `paralleldit-plan-bar paralleldit-plan-${kind}` }, ...pieces)
}

function legend(kinds) {
  const keys = kinds.map((kind) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' })
    return element('span', { class: `paralleldit-plan-key paralleldit-plan-${kind}` }, fill, t(`plan.${kind}`))
  })
  const list = element('div', { class: 'paralleldit-plan-legend' }, ...keys)
  list.setAttribute('aria-hidden', 'true')
  return list
}

function box(className, caption, children, columns) {
  const frame = element('div', { class: caption ? `${className} paralleldit-plan-boxed` : className })
  if (caption) frame.append(element('div', { class: 'paralleldit-plan-caption' }, caption))
  frame.append(grid('paralleldit-plan-row', children, columns))
  return frame
}

/** Children in equal columns; 0: as many as there is room for. */
function grid(className, children, columns) {
  const made = element('div', { class: className }, ...children)
  if (columns) made.style.gridTemplateColumns = `repeat(${Math.min(columns, children.length)}, minmax(0, 1fr))`
  return made
}

function errorBox(words) {
  const alert = line('paralleldit-plan-error', words)
  alert.setAttribute('role', 'alert')
  return alert
}

function line(className, words) {
  return element('div', { class: className }, words)
}
