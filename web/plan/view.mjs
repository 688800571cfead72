// Draws an answer about a plan into an element: the mesh and its remarks, or the error.

import { app } from '../../../scripts/app.js'
import { element } from '../elements.mjs'
import { describeFit, describeRemedies } from '../figures/memory.mjs'
import { describePrediction, describeRan, explainNoPrediction } from '../figures/predicted.mjs'
import { getFileName } from '../panel/format.mjs'
import { countOffered, makeUseAllButton } from '../settings/cards.mjs'
import { summarizeError as inBrief, joinWithOr, t } from '../text.mjs'
import { describeMissing, FILES, findAddress } from './files.mjs'
import { listGraphs } from './links.mjs'
import {
  COMPACT_ABOVE,
  captionGroup,
  captionStage,
  countColumns,
  describeCell,
  describeMesh,
  describeRemark,
  describeTitle,
  groupRanks,
  labelDevice
} from './mesh.mjs'

const MAX_PATCHES_DRAWN = 16

/**
 * Replaces what the element shows. answer: the server's, or null if nothing was asked. why: nothing was asked, see
 * `makeQuestion`. parts: makes the elements: `makeWhole`, or `makeBrief` for little room.
 */
export function draw(target, answer, why, parts) {
  if (why) target.replaceChildren(makeLine('paralleldit-plan-remark', t(...why)))
  else if (!answer) target.replaceChildren()
  else if (answer.error) target.replaceChildren(makeErrorBox(inBrief(answer.error)))
  else target.replaceChildren(...parts(answer))
}

/** Says that there is no answer. It does not look like an error. */
export function drawNoAnswer(target, reason) {
  target.replaceChildren(makeLine('paralleldit-plan-remark', t('plan.unanswered', { reason })))
}

/** Makes the elements for a node, which include how the plan falls on the ranks. */
export function* makeWhole(answer) {
  yield* makeSummary(answer)
  if (answer.ranks.length) yield* makeMesh(answer)
  yield* makeReasons(answer)
}

/** Makes the elements for little room: without the ranks. */
export function* makeBrief(answer) {
  yield* makeSummary(answer)
  yield* makeReasons(answer)
}

/** Makes what is missing, then the plan, whether it fits, how fast it is, and what a person should know first. */
function* makeSummary(answer) {
  const missing = describeMissing(answer, t, FILES)
  if (missing) yield makeMissing(missing, answer.missing)
  for (const words of answer.unknown) yield makeLine('paralleldit-plan-note', inBrief(words))
  if (answer.plan) yield makeLine('paralleldit-plan-title', describeTitle(answer, t))
  if (answer.ran) yield makeLine('paralleldit-plan-title', describeRan(answer.ran, t))
  const fit = describeFit(answer, t)
  if (fit) yield makeLine(`paralleldit-plan-fit${fit.lacks ? ' paralleldit-plan-lacks' : ''}`, fit.text)
  const step = describePrediction(answer, t)?.step ?? explainNoPrediction(answer, t)
  if (step) yield makeLine('paralleldit-plan-step', step)
  if (fit?.lacks) yield* makeRemedies(answer, 'paralleldit-plan-note')
  for (const remark of answer.note) yield makeLine('paralleldit-plan-note', describeRemark(remark, t))
}

/** Makes a line about missing files. The name of one that a template tells of is a link. words: with FILES. */
function makeMissing(words, missing) {
  const [before, after] = words.split(FILES)
  const names = missing.flatMap(({ model }) => [', ', makeFileName(getFileName(model), model)]).slice(1)
  return element('div', { class: 'paralleldit-plan-note paralleldit-plan-missing' }, before, ...names, after)
}

function makeFileName(name, model) {
  const address = findAddress(listGraphs(app.rootGraph), model)
  if (!address) return name
  const help = `${t('plan.download', { file: name })}\n${address}`
  return element('a', { href: address, target: '_blank', rel: 'noreferrer', title: help }, name)
}

/** Makes the reasons and the best plans: folded where a plan is known, which is more important. Not folded is a remark
 * with a button. */
function* makeReasons(answer) {
  for (const remark of answer.remarks.filter(countOffered)) {
    const line = makeLine('paralleldit-plan-remark', describeRemark(remark, t))
    line.append(' ', makeUseAllButton(countOffered(remark)))
    yield line
  }
  const others = answer.remarks.filter((remark) => !countOffered(remark))
  const remarks = others.map((remark) => makeLine('paralleldit-plan-remark', describeRemark(remark, t)))
  const whole = describeFit(answer, t)?.lacks ? [] : makeRemedies(answer, 'paralleldit-plan-remark')
  const reasons = [...makeBest(describePrediction(answer, t)), ...whole, ...remarks]
  if (!answer.plan) yield* reasons
  else if (reasons.length) {
    yield element('details', { class: 'paralleldit-plan-why' }, element('summary', {}, t('plan.why')), ...reasons)
  }
}

function* makeRemedies(answer, className) {
  const remedies = describeRemedies(answer, joinWithOr, t)
  if (remedies) yield makeLine(className, remedies)
}

function* makeBest(words) {
  if (!words) return
  if (words.own) yield makeLine('paralleldit-plan-memory', words.own)
  yield makeLine('paralleldit-plan-memory', words.title)
  const rows = words.best.map((each, place) => {
    const row = element('li', each.fits ? {} : { class: 'paralleldit-plan-lacks' }, each.text)
    if (place === words.chosen) row.setAttribute('aria-current', 'true')
    return row
  })
  const list = element('ol', { class: 'paralleldit-plan-predicted' }, ...rows)
  list.dataset.testid = 'paralleldit-plan-predicted'
  yield list
}

/** Makes a list of the ranks and what each holds. Above sixteen ranks, it is one picture. */
function* makeMesh(answer) {
  const groups = groupRanks(answer)
  const isCompact = answer.ranks.length > COMPACT_ABOVE
  const [first] = groups[0].stages
  const each = first.cells.length
  const parts = groups.map((group) => {
    const stages = group.stages.map((part) => makeStage(part, group, answer.device, isCompact))
    return makeBox(
      'paralleldit-plan-group',
      captionGroup(group, t),
      stages,
      isCompact ? 2 : countBoxColumns(stages.length, each, 2)
    )
  })
  const columns = isCompact ? 2 : countBoxColumns(groups.length, groups[0].stages.length * each)
  const drawn = makeGrid(`paralleldit-plan-mesh${isCompact ? ' paralleldit-plan-compact' : ''}`, parts, columns)
  drawn.setAttribute('role', isCompact ? 'img' : 'list')
  drawn.setAttribute('aria-label', describeMesh(groups, answer.world, t))
  yield drawn
  const [cell] = first.cells
  const kinds = ['tokens', cell.heads && 'heads'].filter(Boolean)
  if (answer.ranks.length > 1 && (kinds.length > 1 || cell.tokens[0][1] < 1)) yield makeLegend(kinds)
}

/** Returns the number of columns for so many boxes of so many ranks each. */
function countBoxColumns(boxes, ranks, most) {
  if (ranks > 2) return 1
  return countColumns(boxes, ranks > 1 ? 2 : most)
}

function makeStage(part, group, device, isCompact) {
  const cells = part.cells.map((cell) => {
    const words = describeCell(cell, group, part, device, t)
    const tile = element('div', { class: 'paralleldit-plan-cell', title: words })
    tile.append(
      isCompact ? element('span', { class: 'paralleldit-plan-rank' }, String(cell.rank)) : makeLabel(cell, device)
    )
    tile.append(makeBar('tokens', cell.tokens))
    if (cell.heads) tile.append(makeBar('heads', [cell.heads]))
    if (!isCompact) {
      tile.setAttribute('role', 'listitem')
      tile.setAttribute('aria-label', words)
    }
    return tile
  })
  return makeBox('paralleldit-plan-stage', captionStage(part, t), cells, isCompact ? 0 : countColumns(cells.length))
}

/** Makes a label like "rank 0 · GPU 0". It takes two lines where the tile is narrow. */
function makeLabel(cell, device) {
  const target = element('div', { class: 'paralleldit-plan-rank', 'aria-hidden': 'true' })
  target.append(element('span', {}, t('plan.rank_label', { rank: cell.rank })))
  const where = labelDevice(cell, device, t)
  if (where) target.append(element('i', {}, ' · '), element('span', {}, where))
  return target
}

/**
 * Makes a bar for the whole, with these [start, stop] parts filled. With several parts, the bar has so many patches.
 */
function makeBar(kind, spans) {
  const patches = spans.length <= MAX_PATCHES_DRAWN ? spans : spans.slice(0, MAX_PATCHES_DRAWN)
  const pieces = patches.map(([start, stop], patch) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' })
    fill.style.marginInlineStart = `${(start * spans.length - patch) * 100}%`
    fill.style.inlineSize = `${(stop - start) * spans.length * 100}%`
    return element('span', { class: 'paralleldit-plan-piece' }, fill)
  })
  return element('div', { class: `paralleldit-plan-bar paralleldit-plan-${kind}` }, ...pieces)
}

function makeLegend(kinds) {
  const keys = kinds.map((kind) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' })
    return element('span', { class: `paralleldit-plan-key paralleldit-plan-${kind}` }, fill, t(`plan.${kind}`))
  })
  const list = element('div', { class: 'paralleldit-plan-legend' }, ...keys)
  list.setAttribute('aria-hidden', 'true')
  return list
}

function makeBox(className, caption, children, columns) {
  const frame = element('div', { class: caption ? `${className} paralleldit-plan-boxed` : className })
  if (caption) frame.append(element('div', { class: 'paralleldit-plan-caption' }, caption))
  frame.append(makeGrid('paralleldit-plan-row', children, columns))
  return frame
}

/** Puts children into equal columns. columns: 0 for as many as fit. */
function makeGrid(className, children, columns) {
  const target = element('div', { class: className }, ...children)
  if (columns) target.style.gridTemplateColumns = `repeat(${Math.min(columns, children.length)}, minmax(0, 1fr))`
  return target
}

function makeErrorBox(words) {
  const alert = makeLine('paralleldit-plan-error', words)
  alert.setAttribute('role', 'alert')
  return alert
}

function makeLine(className, words) {
  return element('div', { class: className }, words)
}
